//! Opens the disks that the engine under test is given.

use std::cell::Cell;
use std::rc::Rc;

use weft_array::Area;
use weft_disk::{BoundedDisk, DISK_TIMEOUT, Disk};

use crate::canary::{Canary, Forgotten};
use crate::disk::{Platter, SimDisk};
use crate::world::World;

/// How the engine's disks are opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gear {
    pub canary: Option<(Canary, Area)>,
}

impl Gear {
    pub(crate) fn open(&self, world: &World, platter: &Platter) -> Rc<dyn Disk> {
        let disk = SimDisk::open(world, platter);
        let rt = world.rt().clone();
        let disk: Rc<dyn Disk> = match &self.canary {
            None => disk,
            Some((canary, area)) => {
                let (rt, area) = (rt.clone(), area.clone());
                let (works, late) = (Cell::new(false), Cell::new(0));
                Rc::new(Forgotten { rt, disk, canary: *canary, area, works, late })
            }
        };
        Rc::new(BoundedDisk::new(&rt, disk, DISK_TIMEOUT))
    }
}
