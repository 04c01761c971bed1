//! Every kernel this machine can run computes the definition, whatever the length, the alignment,
//! the number of sources and the shape of the rows – and touches no byte outside its units.

mod common;

use common::{Fenced, Random, define};
use weft_gf::{Kernel, field, kernel, kernels, kernels_not_here};

fn slices(units: &[Fenced]) -> Vec<&[u8]> {
    units.iter().map(|unit| &unit[..]).collect()
}

fn units(random: &mut Random, count: usize, len: usize, at_end: bool) -> Vec<Fenced> {
    let mut units: Vec<_> = (0..count).map(|_| Fenced::new(len, at_end)).collect();
    units.iter_mut().for_each(|unit| random.fill(unit));
    units
}

/// All operations on `srcs`, into outputs that already hold something.
fn check_all(kernel: Kernel, random: &mut Random, srcs: &[&[u8]], outs: &mut [Fenced; 2]) {
    let (k, len) = (srcs.len(), outs[0].len());
    let ones = vec![1; k];
    let powers: Vec<u8> = (0..k).map(field::exp).collect();
    let zeros = vec![0; len];
    let place = || format!("{kernel}, {k} sources of {len} bytes");
    let [a, b] = outs;
    random.fill(a);
    random.fill(b);

    let want = define(a, &ones, srcs);
    kernel.xor_acc(a, srcs);
    assert!(a[..] == want, "xor_acc: {}", place());
    kernel.xor(a, srcs);
    assert!(a[..] == define(&zeros, &ones, srcs), "xor: {}", place());

    random.fill(a);
    kernel.pq(a, b, srcs);
    assert!(a[..] == define(&zeros, &ones, srcs), "p: {}", place());
    assert!(b[..] == define(&zeros, &powers, srcs), "q: {}", place());

    if let Some(src) = srcs.first() {
        let c = random.byte();
        let want = define(a, &[c], &[src]);
        kernel.mul_acc(a, c, src);
        assert!(a[..] == want, "mul_acc by {c}: {}", place());
        kernel.mul(a, c, src);
        assert!(a[..] == define(&zeros, &[c], &[src]), "mul by {c}: {}", place());
    }

    let rows = [random.bytes(k), random.bytes(k)];
    let rows: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
    let want = [define(a, rows[0], srcs), define(b, rows[1], srcs)];
    kernel.encode_acc(&rows, srcs, &mut [a, b]);
    assert!(a[..] == want[0] && b[..] == want[1], "encode_acc: {}", place());
    kernel.encode(&rows, srcs, &mut [a, b]);
    let want = [define(&zeros, rows[0], srcs), define(&zeros, rows[1], srcs)];
    assert!(a[..] == want[0] && b[..] == want[1], "encode: {}", place());
}

#[test]
fn says_which_kernels_were_run() {
    let run: Vec<_> = kernels().map(Kernel::name).collect();
    let not: Vec<_> = kernels_not_here().collect();
    println!("kernels tested: {}", run.join(" "));
    println!("kernels NOT tested, this machine cannot run them: {}", not.join(" "));
    for (arch, kernels) in [("x86_64", "avx512-gfni to ssse3"), ("aarch64", "neon")] {
        if std::env::consts::ARCH != arch {
            println!("kernels NOT compiled, they need {arch}: {kernels}");
        }
    }
    assert_eq!(kernel().name(), run[0]);
    assert_eq!(run.last(), Some(&"portable"));
    for name in run {
        assert_eq!(Kernel::by_name(name).map(Kernel::name), Some(name));
    }
    for name in not {
        assert_eq!(Kernel::by_name(name), None);
    }
}

#[test]
fn all_lengths_up_to_300() {
    let mut random = Random::new(1);
    for len in 0..=300 {
        for at_end in [false, true] {
            let srcs = units(&mut random, 8, len, at_end);
            let mut outs = [Fenced::new(len, at_end), Fenced::new(len, at_end)];
            for kernel in kernels() {
                for k in [0, 1, 2, 3, 8] {
                    check_all(kernel, &mut random, &slices(&srcs[..k]), &mut outs);
                }
            }
        }
    }
}

#[test]
fn all_numbers_of_sources_up_to_100() {
    let mut random = Random::new(2);
    let srcs = units(&mut random, 100, 333, true);
    let mut outs = [Fenced::new(333, true), Fenced::new(333, true)];
    for kernel in kernels() {
        for k in 0..=100 {
            check_all(kernel, &mut random, &slices(&srcs[..k]), &mut outs);
        }
    }
}

#[test]
fn all_products() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in kernels() {
        for c in 0..=255 {
            let mut out = [0xa5; 256];
            kernel.mul(&mut out, c, &all);
            assert!(out[..] == define(&[0; 256], &[c], &[&all]), "{kernel}: {c}");
            kernel.mul_acc(&mut out, c, &all);
            assert!(out == [0; 256], "{kernel}: {c}·x + c·x = 0");
            // Together with another row, a one or a zero goes through the general loop as well.
            let (mut a, mut b) = ([0; 256], [0; 256]);
            kernel.encode(&[&[c, 2], &[3, c]], &[&all, &all], &mut [&mut a, &mut b]);
            assert!(a[..] == define(&[0; 256], &[c ^ 2], &[&all]), "{kernel}: {c}");
            assert!(b[..] == define(&[0; 256], &[c ^ 3], &[&all]), "{kernel}: {c}");
        }
    }
}

/// A row as codes have them: ones, powers, part of the units, or anything.
fn some_row(random: &mut Random, k: usize) -> Vec<u8> {
    let step = random.below(4);
    match random.below(5) {
        0 => vec![1; k],
        1 => (0..k).map(|j| field::exp(j * step)).collect(),
        2 => (0..k).map(|_| random.byte() & 1).collect(),
        3 => (0..k).map(|_| random.byte() * (random.byte() & 1)).collect(),
        _ => random.bytes(k),
    }
}

#[test]
fn rows_of_every_shape_at_random_places() {
    let mut random = Random::new(3);
    let mut pool = random.bytes(1 << 20);
    for round in 0..400 {
        let (k, r) = (random.below(41), 1 + random.below(10));
        // Some long enough for several pieces.
        let len = random.below(if round % 10 == 0 { 20_000 } else { 2_000 });
        let rows: Vec<_> = (0..r).map(|_| some_row(&mut random, k)).collect();
        let rows: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
        let srcs: Vec<usize> = (0..k).map(|_| random.below(pool.len() - len)).collect();
        let srcs: Vec<&[u8]> = srcs.iter().map(|&at| &pool[at..at + len]).collect();
        let shift: Vec<usize> = (0..r).map(|_| random.below(64)).collect();
        let before: Vec<Vec<u8>> = shift.iter().map(|s| random.bytes(len + s)).collect();
        for kernel in kernels() {
            for acc in [false, true] {
                let mut outs = before.clone();
                let mut dsts: Vec<&mut [u8]> =
                    outs.iter_mut().zip(&shift).map(|(out, &s)| &mut out[s..]).collect();
                if acc {
                    kernel.encode_acc(&rows, &srcs, &mut dsts);
                } else {
                    kernel.encode(&rows, &srcs, &mut dsts);
                }
                for (i, out) in outs.iter().enumerate() {
                    let from = if acc { before[i][shift[i]..].to_vec() } else { vec![0; len] };
                    let want = define(&from, rows[i], &srcs);
                    assert!(out[shift[i]..] == want, "{kernel}, round {round}, row {i}");
                    assert!(out[..shift[i]] == before[i][..shift[i]], "{kernel}: wrote before");
                }
            }
        }
        pool[round] ^= random.byte();
    }
}

/// A source is replaced in outputs of every mixture of coefficients, at fenced places.
#[test]
fn folding() {
    let mut random = Random::new(5);
    for round in 0..600 {
        let len = random.below(if round % 10 == 0 { 9000 } else { 300 });
        let at_end = round % 2 == 0;
        let count = random.below(8);
        let coefs: Vec<u8> = (0..count)
            .map(|_| if random.byte() & 1 == 0 { random.byte() & 1 } else { random.byte() })
            .collect();
        let srcs = units(&mut random, 2, len, at_end);
        let before = units(&mut random, count, len, at_end);
        for kernel in kernels() {
            for keep in [false, true] {
                let mut outs = units(&mut random, count, len, at_end);
                let mut kept = units(&mut random, count, len, at_end);
                for (out, before) in outs.iter_mut().zip(&before) {
                    out.copy_from_slice(before);
                }
                let mut dsts: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut out[..]).collect();
                if keep {
                    let mut without: Vec<&mut [u8]> =
                        kept.iter_mut().map(|out| &mut out[..]).collect();
                    kernel.fold_keeping(&coefs, &srcs[0], &srcs[1], &mut dsts, &mut without);
                } else {
                    kernel.fold(&coefs, &srcs[0], &srcs[1], &mut dsts);
                }
                for (r, &c) in coefs.iter().enumerate() {
                    let without = define(&before[r], &[c], &[&srcs[0]]);
                    let want = define(&without, &[c], &[&srcs[1]]);
                    assert!(outs[r][..] == want, "{kernel}, round {round}: output {r}, by {c}");
                    assert!(!keep || kept[r][..] == without, "{kernel}, round {round}: without");
                }
            }
        }
    }
}

#[test]
fn long_units_at_every_alignment() {
    let mut random = Random::new(4);
    let pool = random.bytes(9 * 70_000);
    let (p_row, q_row) = ([1; 8], [1, 2, 4, 8, 16, 32, 64, 128]);
    for shift in 0..64 {
        let len = 65_536 + random.below(200);
        let srcs: Vec<&[u8]> =
            (0..8).map(|j| &pool[j * 70_000 + shift * (j + 1)..][..len]).collect();
        let want = [define(&vec![0; len], &p_row, &srcs), define(&vec![0; len], &q_row, &srcs)];
        for kernel in kernels() {
            let (mut p, mut q) = (vec![0; len + 64], vec![0; len + 64]);
            let (at_p, at_q) = (shift, 63 - shift);
            kernel.pq(&mut p[at_p..at_p + len], &mut q[at_q..at_q + len], &srcs);
            assert!(p[at_p..at_p + len] == want[0], "{kernel}, shift {shift}: p");
            assert!(q[at_q..at_q + len] == want[1], "{kernel}, shift {shift}: q");
            assert!(p[at_p + len..].iter().all(|&b| b == 0), "{kernel}: wrote behind");
        }
    }
}

#[test]
fn units_long_enough_to_be_written_past_the_caches() {
    let mut random = Random::new(5);
    let len = (1 << 20) + 77;
    let srcs = units(&mut random, 3, len, false);
    let srcs = slices(&srcs);
    let rows: [&[u8]; 6] =
        [&[1, 1, 1], &[1, 2, 4], &[7, 0, 9], &[0, 1, 1], &[3, 2, 1], &[200, 100, 50]];
    let want = rows.map(|row| define(&vec![0; len], row, &srcs));
    for at_end in [false, true] {
        let mut outs: Vec<_> = (0..6).map(|_| Fenced::new(len, at_end)).collect();
        for kernel in kernels() {
            outs.iter_mut().for_each(|out| out.fill(0xee));
            let mut dsts: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut out[..]).collect();
            kernel.encode(&rows, &srcs, &mut dsts);
            for (out, want) in outs.iter().zip(&want) {
                assert!(out[..] == want[..], "{kernel}");
            }
            kernel.xor(&mut outs[1], &srcs);
            assert!(outs[1][..] == want[0][..], "{kernel}: xor");
        }
    }
}

#[test]
fn lengths_that_differ_are_refused() {
    let refused = |call: &mut dyn FnMut()| {
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    };
    let (mut a, mut b, short, src) = ([0; 64], [0; 64], [0; 63], [0; 64]);
    refused(&mut || weft_gf::xor(&mut a, &[&src, &short]));
    refused(&mut || weft_gf::xor_acc(&mut a, &[&short]));
    refused(&mut || weft_gf::mul(&mut a, 3, &short));
    refused(&mut || weft_gf::mul_acc(&mut a, 1, &short));
    refused(&mut || weft_gf::pq(&mut a[..63], &mut b, &[&src]));
    refused(&mut || weft_gf::pq(&mut a, &mut b, &[&short]));
    refused(&mut || weft_gf::encode(&[&[1]], &[&src], &mut [&mut a, &mut b]));
    refused(&mut || weft_gf::encode(&[&[1, 2]], &[&src], &mut [&mut a]));
    refused(&mut || weft_gf::encode(&[&[1], &[2]], &[&src], &mut [&mut a, &mut b[..63]]));
    refused(&mut || weft_gf::fold(&[1, 2], &src, &src, &mut [&mut a]));
    refused(&mut || weft_gf::fold(&[1], &src, &short, &mut [&mut a]));
    refused(&mut || weft_gf::fold(&[1, 2], &src, &src, &mut [&mut a, &mut b[..63]]));
    refused(&mut || weft_gf::fold_keeping(&[1], &src, &src, &mut [&mut a], &mut []));
    refused(&mut || weft_gf::fold_keeping(&[1], &src, &src, &mut [&mut a], &mut [&mut b[..63]]));
    refused(&mut || weft_gf::encode(&[&[5], &[2]], &[&short], &mut [&mut a, &mut b]));
}
