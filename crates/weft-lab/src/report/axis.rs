//! An axis: maps values to places, and sets its ticks.

/// Maps values to places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis over `values`, drawn from `from` to `to`; one of steps starts at 0 if `zero`.
    pub(super) fn over(
        values: impl Iterator<Item = f64>,
        log: bool,
        zero: bool,
        from: f64,
        to: f64,
    ) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite() && (!log || *value > 0.0))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low > high { (0.1, 1.0) } else { (low, high) };
        let (low, high) = match (log, zero) {
            (true, _) => (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil())),
            (false, true) => (low.min(0.0), high.max(0.0)),
            (false, false) => (low, high),
        };
        let high = if low < high { high } else { low + 1.0 };
        let axis = Self { low, high, log, from, to };
        if log || !zero {
            return axis;
        }
        // Up to the next tick, so that the longest bar ends below the frame.
        let step = axis.step();
        Self { high: (high / step - 1e-9).ceil() * step, ..axis }
    }

    /// Where a value is drawn.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = if self.log {
            let value = value.max(self.low);
            (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// A step of 1, 2 or 5 times a power of ten that gives about five.
    fn step(&self) -> f64 {
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= rough * 0.999);
        step.unwrap_or(10.0) * power
    }

    /// The values at ticks, with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        if self.log {
            return self.decades();
        }
        let step = self.step();
        let first = (self.low / step).ceil();
        let count = 40;
        (0..count)
            .map(|n| (first + f64::from(n)) * step)
            .take_while(|value| *value <= self.high * (1.0 + 1e-9))
            .map(|value| (value, label(value, step)))
            .collect()
    }

    fn decades(&self) -> Vec<(f64, String)> {
        let (first, last) = (self.low.log10().round(), self.high.log10().round());
        let every = ((last - first) / 8.0).ceil().max(1.0);
        let mut ticks = Vec::new();
        let mut power = first;
        while power <= last {
            ticks.push((10f64.powf(power), format!("1e{power}")));
            power += every;
        }
        ticks
    }
}

/// A tick's value with as many digits as its step needs.
fn label(value: f64, step: f64) -> String {
    if step >= 1.0 {
        format!("{value:.0}")
    } else if step >= 0.1 {
        format!("{value:.1}")
    } else if step >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}
