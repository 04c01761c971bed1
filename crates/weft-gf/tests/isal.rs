//! weft and Intel's ISA-L compute the same parity, so either can read what the other wrote.
//!
//! ISA-L comes from Debian's `libisal2`. Without it the test is skipped.

mod common;
mod isal_ffi;

use common::{Fenced, Random};
use isal_ffi::Isal;
use weft_gf::{field, kernels};

/// ISA-L, or `None` after saying why the test is skipped.
fn isal() -> Option<Isal> {
    Isal::load().inspect_err(|why| weft_testkit::skip(why)).ok()
}

#[test]
fn sums_and_pq_are_those_of_isal() {
    let Some(isal) = isal() else { return };
    let mut random = Random::new(11);
    for round in 0..120 {
        let (k, len) = (2 + random.below(30), 32 * (1 + random.below(400)));
        // Units that begin at a page are aligned as ISA-L wants them.
        let mut units: Vec<_> = (0..k + 2).map(|_| Fenced::new(len, false)).collect();
        units.iter_mut().for_each(|unit| random.fill(unit));
        let mut q = units.pop().unwrap();
        let mut p = units.pop().unwrap();
        let srcs: Vec<&[u8]> = units.iter().map(|unit| &unit[..]).collect();
        let (mut our_p, mut our_q) = (vec![0; len], vec![0; len]);
        isal.pq(&srcs, &mut p, &mut q);
        for kernel in kernels() {
            kernel.pq(&mut our_p, &mut our_q, &srcs);
            assert!(our_p[..] == p[..], "{kernel}, round {round}: P");
            assert!(our_q[..] == q[..], "{kernel}, round {round}: Q");
        }
        isal.xor(&srcs, &mut q);
        for kernel in kernels() {
            kernel.xor(&mut our_p, &srcs);
            assert!(our_p[..] == q[..], "{kernel}, round {round}: XOR");
        }
    }
}

#[test]
fn products_by_every_constant_are_those_of_isal() {
    let Some(isal) = isal() else { return };
    let mut random = Random::new(12);
    let (src, before) = (random.bytes(512), random.bytes(512));
    for c in 0..=255 {
        let table = isal.tables(&[&[c]]);
        let (mut product, mut sum) = (vec![0; 512], before.clone());
        isal.mul(&table, &src, &mut product);
        isal.mul_acc(&table, &src, &mut sum);
        for kernel in kernels() {
            let (mut ours, mut our_sum) = (vec![0; 512], before.clone());
            kernel.mul(&mut ours, c, &src);
            kernel.mul_acc(&mut our_sum, c, &src);
            assert!(ours == product && our_sum == sum, "{kernel}: {c}");
        }
    }
}

#[test]
fn general_products_are_those_of_isal() {
    let Some(isal) = isal() else { return };
    let mut random = Random::new(13);
    for round in 0..200 {
        let (k, r, len) = (1 + random.below(40), 1 + random.below(8), 64 + random.below(5000));
        let vandermonde = round % 2 == 0;
        let rows: Vec<Vec<u8>> = (0..r)
            .map(|i| match vandermonde {
                true => (0..k).map(|j| field::exp(i * j)).collect(),
                false => random.bytes(k),
            })
            .collect();
        let rows: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
        let units: Vec<_> = (0..k).map(|_| random.bytes(len)).collect();
        let srcs: Vec<&[u8]> = units.iter().map(|unit| &unit[..]).collect();
        let mut want = vec![vec![0; len]; r];
        let mut dsts: Vec<&mut [u8]> = want.iter_mut().map(|unit| &mut unit[..]).collect();
        isal.encode(&isal.tables(&rows), &srcs, &mut dsts);
        for kernel in kernels() {
            let mut ours = vec![vec![0xff; len]; r];
            let mut dsts: Vec<&mut [u8]> = ours.iter_mut().map(|unit| &mut unit[..]).collect();
            kernel.encode(&rows, &srcs, &mut dsts);
            assert!(ours == want, "{kernel}, round {round}: {k}+{r}, {len} bytes");
        }
    }
}
