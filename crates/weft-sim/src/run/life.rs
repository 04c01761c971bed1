//! One life: from assembly to a crash or a clean stop.

use std::cell::RefCell;
use std::rc::Rc;

use super::state::Run;
use crate::disk::Hangs;
use crate::engine::Engine;
use crate::events;
use crate::excuse::watch_losses;
use crate::membership::{self, superblock_of};
use crate::oracle::Oracle;
use crate::setup::Map;
use crate::violation::Broken;
use crate::volume::Volume;
use crate::workload::Desk;

impl Run {
    /// From assembly to a crash or a clean stop.
    pub(super) fn life(&mut self, number: u64, last: bool) -> Result<(), Broken> {
        self.report.borrow_mut().lives += 1;
        self.desk_of_run();
        if self.last.is_some() {
            self.lose_and_return();
        }
        let crash = !last && self.rng.chance(85) || (number == 1 && self.options.cut_at.is_some());
        let may_besiege = crash && !self.options.quiet && self.options.cut_at.is_none();
        self.besieged = may_besiege && self.rng.chance(40);
        if crash {
            let steps = match self.options.cut_at {
                Some(step) if number == 1 => step,
                _ if self.besieged => self.rng.within(1000, 6000),
                _ => match self.rng.below(4) {
                    0 => self.rng.within(1, 300),
                    _ => self.rng.within(100, 6000),
                },
            };
            self.world.cut_at(Some(self.world.steps() + steps));
        }
        self.draw_hangs(crash && self.options.cut_at.is_none());
        let body = self.body(last);
        let start = self.world.steps();
        let done = self.drive(body);
        if number == 1 {
            self.report.borrow_mut().steps_first = self.world.steps() - start;
        }
        self.world.cut_at(None);
        self.world.set_ambush(None);
        self.remember_slots();
        // A life that ends by giving up ends without a stop, too.
        if done?.is_none() || !self.world.is_on() {
            self.crash();
        }
        self.rt.kill_all();
        self.world.restore();
        Ok(())
    }

    /// Which operations hang in this life; a siege begins with hangs of its own.
    fn draw_hangs(&mut self, crash: bool) {
        let mut rng = self.world.rng(7000 + self.report.borrow().lives);
        let disks = self.disks.borrow();
        let mut hangs = Hangs::draw(&mut rng, disks.len() + 1, crash);
        if self.options.quiet || self.besieged {
            hangs.fill(Hangs::default());
        }
        for (member, hangs) in disks.iter().zip(&hangs) {
            member.platter.set_hangs(hangs.clone());
        }
        *self.hangs_of_more.borrow_mut() = hangs.last().cloned().unwrap_or_default();
    }

    /// A life, as a future.
    fn body(&mut self, last: bool) -> impl Future<Output = ()> + 'static {
        let (rt, world, disks) = (self.rt.clone(), self.world.clone(), self.open());
        let desk = self.desk_of_run();
        desk.quiesce.set(false);
        desk.errors_allowed.set(false);
        let stage = events::Stage {
            rt: rt.clone(),
            world: world.clone(),
            desk: desk.clone(),
            map: self.map.clone().expect("just made"),
            setup: self.setup.clone(),
            disks: self.disks.clone(),
            report: self.report.clone(),
            rng: RefCell::new(self.rng.fork(1000 + self.report.borrow().lives)),
            rooms: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            policies: RefCell::new(self.world.rng(3000 + self.report.borrow().lives)),
            hangs: RefCell::new(self.world.rng(6000 + self.report.borrow().lives)),
            promotions: RefCell::new(self.world.rng(11_000 + self.report.borrow().lives)),
            returns: RefCell::new(self.world.rng(8000 + self.report.borrow().lives)),
            claimed: RefCell::default(),
            quiet: self.options.quiet,
            gear: self.gear.clone(),
            hangs_of_more: self.hangs_of_more.clone(),
        };
        let clients = self.world.rng(50 + self.report.borrow().lives);
        let (holder, besieged) = (self.engine.clone(), self.besieged);
        let durable = clients.clone().chance(60);
        let load = match besieged {
            true => self.setup.load.pressing(durable),
            false => self.setup.load.clone(),
        };
        let lost_at = self.lost_at.clone();
        let nonce = self.rng.next_u64();
        let check_first = self.rng.chance(50);
        let check_twice = self.rng.chance(30);
        let stop_early = !last && !self.options.quiet && self.rng.chance(20);
        let before = self.last.clone();
        let loses_at_once = self.cut_short
            && !self.options.quiet
            && self.world.rng(12_000 + self.report.borrow().lives).chance(50);
        let opening = membership::assemble(&rt, &self.disks.borrow(), disks, nonce);
        async move {
            stage.allow_to_stop();
            let engine = match opening.await {
                Ok(engine) => engine,
                // Whoever runs it tries again.
                Err(_) if desk.has_to_stop() => return world.cut(),
                Err(broken) => return desk.broke(broken),
            };
            world.note(format!("assembled: {}", events::summary(&engine)));
            stage.forget_promises_of_assembly(&engine, before.as_ref());
            watch_losses(&engine, &desk, &stage.map, &lost_at);
            stage.make_room_later();
            *holder.borrow_mut() = Some(engine.clone());
            if loses_at_once {
                // What two recoveries made of one crash must agree before any resync.
                stage.fail_member(&engine).await;
            }
            if !stage.quiet {
                stage.change_policy(&engine).await;
            }
            let volume: Rc<dyn Volume> = Rc::new(engine.clone());
            if check_first {
                desk.read_all(&*volume, 90).await;
            }
            let tasks = desk.start(&volume, &load, &clients);
            let trouble = async {
                if besieged {
                    stage.besiege(&engine).await;
                }
                stage.trouble(&engine).await;
                if stop_early {
                    // In the middle of everything: whoever comes too late is told so.
                    desk.errors_allowed.set(true);
                    desk.quiesce.set(true);
                    stage.finish(&engine, false).await;
                }
            };
            futures_util::future::join(futures_util::future::join_all(tasks), trouble).await;
            if stop_early {
                return;
            }
            if check_twice {
                desk.read_all(&*volume, 91).await;
            }
            stage.finish(&engine, last).await;
        }
    }

    /// What the clients share; made when the array's size is known.
    fn desk_of_run(&mut self) -> Rc<Desk> {
        if let Some(desk) = &self.desk {
            return desk.clone();
        }
        let size = self.size_of_array();
        self.map = Some(Rc::new(Map::new(&self.setup, size)));
        let area = self.disks.borrow().first().and_then(|m| superblock_of(&m.platter));
        self.gear.canary = self.options.canary.zip(area.map(|superblock| superblock.area));
        let oracle = Oracle::new(self.world.seed(), size, self.setup.cell_bytes);
        let desk = Desk::new(&self.world, oracle);
        desk.vanish_percent.set(self.setup.load.vanish_percent);
        let k = self.setup.code.shape(self.setup.slots).map_or(1, |shape| shape.k as u64);
        desk.discard_zeroes.set(Some(k * u64::from(self.setup.unit_bytes)));
        self.desk = Some(desk.clone());
        desk
    }

    /// Assembles once on copies, to learn the size.
    fn size_of_array(&self) -> u64 {
        let copies = self.open_copies(|_| false);
        let rt = self.rt.clone();
        let size = self.rt.block_on(async move {
            Engine::assemble(&rt, copies, true, false, 1).await.map(|engine| engine.size_bytes())
        });
        self.rt.kill_all();
        size.unwrap_or_else(|error| panic!("a new array cannot be assembled: {error}"))
    }
}
