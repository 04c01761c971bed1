//! GF(2^8) is a field, it is the one of polynomial 0x11d, and 2 generates it.

use weft_gf::field::{ORDER, POLYNOMIAL, div, exp, inv, log, mul, pow};

/// Carry-less multiplication and long division by the polynomial: the definition.
fn product(a: u8, b: u8) -> u8 {
    let mut wide = 0u16;
    for i in 0..8 {
        if b >> i & 1 == 1 {
            wide ^= u16::from(a) << i;
        }
    }
    for i in (8..16).rev() {
        if wide >> i & 1 == 1 {
            wide ^= POLYNOMIAL << (i - 8);
        }
    }
    u8::try_from(wide).unwrap()
}

#[test]
fn products_are_those_of_polynomials() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(mul(a, b), product(a, b), "{a}·{b}");
        }
    }
}

#[test]
fn multiplication_is_a_commutative_group_that_distributes() {
    for a in 0..=255 {
        assert_eq!((mul(a, 1), mul(a, 0)), (a, 0));
        for b in 0..=255 {
            assert_eq!(mul(a, b), mul(b, a));
            assert_eq!(mul(a, b) == 0, a == 0 || b == 0);
            for c in 0..=255 {
                assert_eq!(mul(a, mul(b, c)), mul(mul(a, b), c));
                assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
            }
        }
    }
}

#[test]
fn every_element_but_zero_has_an_inverse() {
    for a in 1..=255 {
        assert_eq!(mul(a, inv(a)), 1);
        for b in 0..=255 {
            assert_eq!(mul(div(b, a), a), b);
        }
    }
}

#[test]
fn two_generates_all_elements_but_zero() {
    let mut seen = [false; 256];
    for i in 0..ORDER {
        let a = exp(i);
        assert!(a != 0 && !seen[usize::from(a)]);
        seen[usize::from(a)] = true;
        assert_eq!(usize::from(log(a)), i);
        assert_eq!(exp(i + ORDER), a);
        assert_eq!(pow(2, i), a);
    }
    assert_eq!(exp(1), 2);
}

#[test]
fn powers_are_repeated_products() {
    for a in 0..=255 {
        let mut power = 1;
        for n in 0..600 {
            assert_eq!(pow(a, n), power, "{a}^{n}");
            power = mul(power, a);
        }
    }
}

#[test]
#[should_panic(expected = "zero has no inverse")]
fn zero_has_no_inverse() {
    let _ = inv(0);
}

#[test]
#[should_panic(expected = "zero has no logarithm")]
fn zero_has_no_logarithm() {
    let _ = log(0);
}
