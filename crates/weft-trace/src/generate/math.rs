//! Random numbers and the two functions they need, the same to the last bit on every machine.
//!
//! The standard library's `ln` and `exp` come from the platform and may differ in the last digit,
//! which would make a seed's requests differ too. These use only additions, multiplications and
//! divisions, which IEEE 754 defines exactly; their error is below 10⁻¹⁴.

use weft_rt::rng::{SplitMix64, finish, mix};

/// [`SplitMix64`], with the draws that requests need.
#[derive(Debug, Clone)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// A generator of its own for each `purpose`, so that a change in one leaves the other ones
    /// unchanged.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self(SplitMix64::new(finish(seed ^ mix(purpose))))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// True with a probability in millionths.
    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// A number in (0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1u64 << 53) as f64;
        ((self.next_u64() >> 11) as f64 + 0.5) / STEPS
    }

    /// An exponentially distributed number with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -ln(self.unit()) * mean
    }
}

/// The natural logarithm of a positive, normal number.
pub(crate) fn ln(x: f64) -> f64 {
    // x = m·2^e with m in [√½, √2); ln m = 2·artanh((m−1)/(m+1)).
    let bits = x.to_bits();
    let mut exponent = f64::from(u32::try_from(bits >> 52 & 0x7ff).unwrap_or(0)) - 1023.0;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1.0;
    }
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    let mut sum = 0.0;
    for k in (0..=12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * k + 1);
    }
    2.0 * z * sum + exponent * std::f64::consts::LN_2
}

/// `e` to the power of `x`; 0 or infinity where a double cannot hold it.
pub(crate) fn exp(x: f64) -> f64 {
    let steps = (x / std::f64::consts::LN_2 + 0.5).floor();
    if steps < -1022.0 {
        return 0.0;
    }
    if steps > 1023.0 {
        return f64::INFINITY;
    }
    let rest = x - steps * std::f64::consts::LN_2;
    let mut sum = 1.0;
    for k in (1..=17).rev() {
        sum = 1.0 + sum * rest / f64::from(k);
    }
    let power = f64::from_bits(to_u64(steps + 1023.0) << 52);
    sum * power
}

/// The whole part, from 0 up.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(crate) fn to_u64(x: f64) -> u64 {
    x as u64
}

/// A bijection of the numbers below `count`, drawn from `key`: it scatters neighbours.
///
/// A Feistel network of four rounds over the next even number of bits, walked until it comes back
/// below `count` (Black, Rogaway, "Ciphers with arbitrary finite domains", 2002).
pub(crate) fn scatter(number: u64, count: u64, key: u64) -> u64 {
    let bits = (64 - count.saturating_sub(1).leading_zeros()).max(2).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let mut number = number;
    loop {
        let (mut left, mut right) = (number >> bits, number & mask);
        for round in 0..4 {
            let f = finish(right ^ finish(key.wrapping_add(round))) & mask;
            (left, right) = (right, left ^ f);
        }
        number = left << bits | right;
        if number < count {
            return number;
        }
    }
}

/// Ranks 1 to `count` with probability proportional to `rank^-theta`.
///
/// Rejection-inversion (Hörmann, Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", 1996): no table, so the number of ranks costs nothing.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    count: f64,
    theta: f64,
    /// Integral of the hat from 1.5, less 1; and to `count + ½`.
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    pub(crate) fn new(count: u64, theta_milli: u32) -> Self {
        let mut zipf = Self {
            count: count.max(1) as f64,
            theta: f64::from(theta_milli) / 1000.0,
            low: 0.0,
            high: 0.0,
            shortcut: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        exp(-self.theta * ln(x))
    }

    fn integral(&self, x: f64) -> f64 {
        let rest = 1.0 - self.theta;
        if rest == 0.0 { ln(x) } else { (exp(rest * ln(x)) - 1.0) / rest }
    }

    fn inverse(&self, y: f64) -> f64 {
        let rest = 1.0 - self.theta;
        if rest == 0.0 {
            return exp(y);
        }
        // Rounding may carry the base to 0 at the far end of a steep distribution.
        exp(ln((1.0 + y * rest).max(f64::MIN_POSITIVE)) / rest)
    }

    /// A rank, from 0.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            if rank - x <= self.shortcut || u >= self.integral(rank + 0.5) - self.weight(rank) {
                return to_u64(rank) - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_are_those_of_the_library() {
        for n in 1..2000 {
            let x = f64::from(n) * 0.37;
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "ln {x}");
            let y = f64::from(n - 1000) * 0.31;
            assert!((exp(y) / y.exp() - 1.0).abs() <= 1e-13, "exp {y}");
        }
    }

    #[test]
    fn scattering_loses_no_number() {
        for count in [1, 2, 3, 5, 64, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|n| scatter(n, count, 7)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn zipf_has_the_probabilities_it_says() {
        for theta_milli in [0, 500, 800, 1000, 1200] {
            let (count, draws) = (20, 200_000);
            let zipf = Zipf::new(count, theta_milli);
            let mut rng = Rng::new(1, u64::from(theta_milli));
            let mut found = vec![0u32; 20];
            for _ in 0..draws {
                found[usize::try_from(zipf.draw(&mut rng)).expect("small")] += 1;
            }
            let theta = f64::from(theta_milli) / 1000.0;
            let weights: Vec<f64> = (1..=20).map(|rank| f64::from(rank).powf(-theta)).collect();
            let total: f64 = weights.iter().sum();
            for (weight, found) in weights.iter().zip(found) {
                let expected = weight / total * f64::from(draws);
                // Six standard deviations.
                assert!((f64::from(found) - expected).abs() < 6.0 * expected.sqrt(), "{theta}");
            }
        }
    }
}
