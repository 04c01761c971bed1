//! Fields of prime-power order small enough for tables; the arithmetic of orthogonal arrays.
//!
//! An element of GF(p^e) is a number below p^e whose digits in base p are the coefficients of a
//! polynomial. Products are taken modulo the first monic polynomial of degree e under which no two
//! non-zero elements multiply to zero: such a finite ring is a field.

pub(crate) struct SmallField {
    order: usize,
    add: Vec<usize>,
    mul: Vec<usize>,
}

impl SmallField {
    /// The prime p if `order` = p^e, e ≥ 1.
    pub(crate) fn characteristic(order: usize) -> Option<usize> {
        let p = (2..=order).find(|p| order.is_multiple_of(*p))?;
        let mut rest = order;
        while rest.is_multiple_of(p) {
            rest /= p;
        }
        (rest == 1).then_some(p)
    }

    /// The field of `order` elements; none if that is not a prime power.
    pub(crate) fn new(order: usize) -> Option<Self> {
        let p = Self::characteristic(order)?;
        let add = table(order, |a, b| add(a, b, p));
        let mul = (0..order).find_map(|low| product_table(order, p, low))?;
        Some(Self { order, add, mul })
    }

    pub(crate) fn add(&self, a: usize, b: usize) -> usize {
        self.add[a * self.order + b]
    }

    pub(crate) fn mul(&self, a: usize, b: usize) -> usize {
        self.mul[a * self.order + b]
    }
}

fn table(order: usize, op: impl Fn(usize, usize) -> usize) -> Vec<usize> {
    (0..order * order).map(|i| op(i / order, i % order)).collect()
}

/// Digit by digit, modulo p.
fn add(a: usize, b: usize, p: usize) -> usize {
    if a == 0 && b == 0 { 0 } else { (a % p + b % p) % p + p * add(a / p, b / p, p) }
}

fn scale(a: usize, c: usize, p: usize) -> usize {
    if a == 0 { 0 } else { a % p * c % p + p * scale(a / p, c, p) }
}

/// Products modulo x^e + `low`, unless two non-zero elements multiply to zero.
fn product_table(order: usize, p: usize, low: usize) -> Option<Vec<usize>> {
    // x^e ≡ −low
    let minus_low = scale(low, p - 1, p);
    let times_x = |a: usize| {
        let top = a / (order / p);
        add(a % (order / p) * p, scale(minus_low, top, p), p)
    };
    let product = |a: usize, b: usize| {
        let (mut sum, mut shifted, mut rest) = (0, a, b);
        while rest != 0 {
            sum = add(sum, scale(shifted, rest % p, p), p);
            shifted = times_x(shifted);
            rest /= p;
        }
        sum
    };
    for a in 1..order {
        for b in a..order {
            if product(a, b) == 0 {
                return None;
            }
        }
    }
    Some(table(order, product))
}

#[cfg(test)]
mod tests {
    use super::SmallField;

    #[test]
    fn every_small_order_is_a_field_or_refused() {
        for order in 2..=32 {
            let prime_power = [6, 10, 12, 14, 15, 18, 20, 21, 22, 24, 26, 28, 30];
            assert_eq!(SmallField::new(order).is_none(), prime_power.contains(&order), "{order}");
            let Some(f) = SmallField::new(order) else { continue };
            for a in 0..order {
                assert_eq!((f.add(a, 0), f.mul(a, 1)), (a, a));
                for b in 0..order {
                    assert_eq!((f.add(a, b), f.mul(a, b)), (f.add(b, a), f.mul(b, a)));
                    for c in [0, 1, order / 2, order - 1] {
                        assert_eq!(f.mul(c, f.add(a, b)), f.add(f.mul(c, a), f.mul(c, b)));
                        assert_eq!(f.mul(c, f.mul(a, b)), f.mul(f.mul(c, a), b));
                    }
                }
                assert!(a == 0 || (0..order).any(|b| f.mul(a, b) == 1));
                assert!((0..order).any(|b| f.add(a, b) == 0));
            }
        }
    }
}
