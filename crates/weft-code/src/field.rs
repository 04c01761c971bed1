//! The few GF(2^8) operations that building and solving rows takes (polynomial 0x11d, generator 2).
const POLY: u16 = 0x11d;

const TABLES: ([u8; 512], [u8; 256]) = {
    let (mut exp, mut log) = ([0u8; 512], [0u8; 256]);
    let (mut x, mut i) = (1u16, 0);
    while i < 255 {
        exp[i] = x.to_le_bytes()[0];
        exp[i + 255] = exp[i];
        log[x as usize] = i.to_le_bytes()[0];
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= POLY;
        }
        i += 1;
    }
    (exp, log)
};

pub(crate) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[usize::from(TABLES.1[usize::from(a)]) + usize::from(TABLES.1[usize::from(b)])]
}

pub(crate) fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    TABLES.0[255 - usize::from(TABLES.1[usize::from(a)])]
}

/// 2^n.
pub(crate) fn exp(n: usize) -> u8 {
    TABLES.0[n % 255]
}
