//! Opens the disks that the engine under test uses.

use std::cell::Cell;
use std::rc::Rc;

use weft_array::Area;
use weft_disk::{BoundedDisk, DISK_TIMEOUT, Disk};

use crate::canary::{Canary, CanaryDisk};
use crate::disk::{Platter, SimDisk};
use crate::world::World;

/// Opens disks, with a time limit and, if the run has one, a canary.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskFactory {
    pub canary: Option<(Canary, Area)>,
}

impl DiskFactory {
    pub(crate) fn open(&self, world: &World, platter: &Platter) -> Rc<dyn Disk> {
        let disk = SimDisk::open(world, platter);
        let rt = world.rt().clone();
        let disk: Rc<dyn Disk> = match &self.canary {
            None => disk,
            Some((canary, area)) => {
                let (rt, area) = (rt.clone(), area.clone());
                let (in_use, late) = (Cell::new(false), Cell::new(0));
                Rc::new(CanaryDisk { rt, disk, canary: *canary, area, in_use, late })
            }
        };
        Rc::new(BoundedDisk::new(&rt, disk, DISK_TIMEOUT))
    }
}
