//! ALV's valve: in each period it compares how users fared in the last one with what they may, and
//! lets the reshape run or stops it for the whole period.
//!
//! Users fared badly if more than a share θ of their requests took longer than the bound B, or if
//! the array was congested: some request found no buffer. The period of the paper is a second. It
//! calls B the latency bound and θ the slack factor.

use std::cell::Cell;
use std::rc::Rc;

use serde::Deserialize;
use weft_array::experiment::{Admission, Pace, Throttle};
use weft_rt::{MILLISECOND, Nanos};

/// Its parameters.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    period_ms: u32,
    /// B.
    bound_ms: u32,
    /// θ, in thousandths.
    slack_milli: u32,
}

/// How users fared since the last judgement.
#[derive(Debug, Default)]
pub(crate) struct Users {
    bound: Cell<Nanos>,
    requests: Cell<u64>,
    late: Cell<u64>,
    congested: Cell<bool>,
}

impl Users {
    /// A request took this long in the array.
    pub(crate) fn served(&self, took: Nanos) {
        self.requests.set(self.requests.get() + 1);
        self.late.set(self.late.get() + u64::from(took > self.bound.get()));
    }

    /// A request found no buffer.
    pub(crate) fn congested(&self) {
        self.congested.set(true);
    }
}

/// See the [module](self).
pub(crate) struct Valve {
    settings: Settings,
    users: Rc<Users>,
    period_ends: Nanos,
    open: bool,
}

impl Valve {
    pub(crate) fn new(settings: Settings, users: Rc<Users>, now: Nanos) -> Self {
        users.bound.set(u64::from(settings.bound_ms) * MILLISECOND);
        let mut valve = Self { settings, users, period_ends: now, open: true };
        valve.period_ends += valve.period();
        valve
    }

    fn period(&self) -> Nanos {
        u64::from(self.settings.period_ms.max(1)) * MILLISECOND
    }

    /// Whether users fared well; starts again.
    fn judge(&self) -> bool {
        let Users { requests, late, congested, .. } = &*self.users;
        let allowed = requests.take() * u64::from(self.settings.slack_milli);
        !congested.take() && late.take() * 1000 <= allowed
    }
}

impl Pace for Valve {
    fn admit(&mut self, _: &Throttle, now: Nanos, _: usize, _: usize) -> Admission {
        if now >= self.period_ends {
            self.open = self.judge();
            let periods = (now - self.period_ends) / self.period() + 1;
            self.period_ends += periods * self.period();
        }
        if self.open { Admission::Now } else { Admission::At(self.period_ends) }
    }

    fn begun(&mut self, _: &Throttle, _: Nanos, _: u64) {}
}

#[cfg(test)]
mod tests {
    use weft_rt::SECOND;

    use super::*;

    #[test]
    fn it_stops_for_a_period_after_one_in_which_users_waited() {
        let users = Rc::new(Users::default());
        let settings = Settings { period_ms: 1000, bound_ms: 15, slack_milli: 100 };
        let mut valve = Valve::new(settings, users.clone(), 0);
        let throttle = Throttle::default();
        let mut at = |now| valve.admit(&throttle, now, 0, 1);
        let serve = |late, all| {
            (0..all).for_each(|n| users.served(if n < late { 16 } else { 15 } * MILLISECOND));
        };
        serve(2, 10);
        assert_eq!(at(SECOND - 1), Admission::Now);
        // 2 of 10 are more than a tenth.
        assert_eq!(at(SECOND), Admission::At(2 * SECOND));
        serve(1, 10);
        assert_eq!(at(SECOND * 3 / 2), Admission::At(2 * SECOND));
        // 1 of 10 is not.
        assert_eq!(at(2 * SECOND), Admission::Now);
        users.congested();
        assert_eq!(at(7 * SECOND / 2), Admission::At(4 * SECOND));
        assert_eq!(at(4 * SECOND), Admission::Now);
    }
}
