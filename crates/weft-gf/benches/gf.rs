//! Speed of parity computation, compared with ISA-L and with copying, in one run.
//!
//! `cargo bench -p weft-gf`. Rates are bytes of *data* (sources) read per second, without the bytes
//! written; a copy's rate is the bytes copied per second, so it also counts bytes read. Contestants
//! take turns, round by round, and the first round is discarded. A rate is the median of its rounds
//! and a ratio the median of the rounds' ratios. All memory is touched before the clock starts.
//!
//! Two settings: *hot*, where a stripe's units stay in the core's caches from call to call, and
//! *cold*, where the data come from memory, a stripe at a time out of a set larger than the caches.

#[path = "../tests/isal_ffi/mod.rs"]
mod isal_ffi;

use std::{hint::black_box, time::Instant};

use isal_ffi::Isal;
use weft_gf::{Kernel, field, kernel, kernels};

const ROUNDS: usize = 15;
/// How long one contestant runs in one round when hot.
const TURN_NS: u128 = 3_000_000;
/// Sources of the cold setting; more than twice the largest cache of the machines at hand.
const COLD_BYTES: usize = 768 << 20;
const UNIT: usize = 64 << 10;

type Contestant<'a> = (String, Box<dyn FnMut() + 'a>);

/// Nanoseconds of each contestant's single run, per counted round.
fn race(contestants: &mut [Contestant<'_>], rounds: usize, turn_ns: u128) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for ((_, run), times) in contestants.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            let mut runs = 0u32;
            while runs == 0 || begin.elapsed().as_nanos() < turn_ns {
                run();
                runs += 1;
            }
            if round > 0 {
                times.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(runs));
            }
        }
    }
    times
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Races and prints a line for each contestant; ratios are to the first.
#[allow(clippy::cast_precision_loss, reason = "sizes are small")]
fn report(what: &str, bytes: usize, mut contestants: Vec<Contestant<'_>>, cold: bool) {
    let (rounds, turn) = if cold { (7, 0) } else { (ROUNDS, TURN_NS) };
    let times = race(&mut contestants, rounds, turn);
    for ((name, _), mine) in contestants.iter().zip(&times) {
        let rate = bytes as f64 / median(mine.clone());
        let ratio = median(times[0].iter().zip(mine).map(|(first, mine)| first / mine).collect());
        println!("| {what:<28} | {name:<24} | {rate:>7.2} | {ratio:>5.2} |");
    }
}

/// Page-aligned, touched memory.
struct Pages {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        let bytes: Vec<u8> =
            (0..len + 4096).map(|i| (i * 31 + i / 4096).to_le_bytes()[0]).collect();
        let skip = bytes.as_ptr().align_offset(4096);
        Pages { bytes, skip, len }
    }
    fn get(&self) -> &[u8] {
        &self.bytes[self.skip..][..self.len]
    }
    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..][..self.len]
    }
}

fn heading(title: &str) {
    println!("\n### {title}\n");
    println!("| {:<28} | {:<24} | {:>7} | ratio |", "what", "by", "GB/s");
    println!("|{:-<30}|{:-<26}|{:-<9}|{:-<7}|", "", "", "", "");
}

fn hot_pq(isal: Option<&Isal>, unit: usize, by: &[Kernel]) {
    let data = Pages::new(8 * unit);
    let srcs: Vec<&[u8]> = data.get().chunks(unit).collect();
    let mut outs: Vec<_> = (0..=by.len()).map(|_| Pages::new(2 * unit)).collect();
    let mut outs = outs.iter_mut();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    let srcs = &srcs[..];
    if let Some(isal) = isal {
        let (p, q) = outs.next().unwrap().get_mut().split_at_mut(unit);
        contestants.push(("ISA-L pq_gen".into(), Box::new(|| isal.pq(black_box(srcs), p, q))));
    }
    for &kernel in by {
        let (p, q) = outs.next().unwrap().get_mut().split_at_mut(unit);
        let run = move || kernel.pq(p, q, black_box(srcs));
        contestants.push((format!("weft {kernel}"), Box::new(run)));
    }
    report(&format!("P+Q 8+2, {} KiB", unit >> 10), 8 * unit, contestants, false);
}

fn hot_xor(isal: Option<&Isal>, k: usize, by: &[Kernel]) {
    let data = Pages::new(k * UNIT);
    let srcs: Vec<&[u8]> = data.get().chunks(UNIT).collect();
    let mut outs: Vec<_> = (0..=by.len()).map(|_| Pages::new(UNIT)).collect();
    let mut outs = outs.iter_mut();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    let srcs = &srcs[..];
    if let Some(isal) = isal {
        let dst = outs.next().unwrap().get_mut();
        contestants.push(("ISA-L xor_gen".into(), Box::new(|| isal.xor(black_box(srcs), dst))));
    }
    for &kernel in by {
        let dst = outs.next().unwrap().get_mut();
        let run = move || kernel.xor(dst, black_box(srcs));
        contestants.push((format!("weft {kernel}"), Box::new(run)));
    }
    report(&format!("XOR {k}+1, 64 KiB"), k * UNIT, contestants, false);
}

fn hot_mul_acc(isal: Option<&Isal>, by: &[Kernel]) {
    let data = Pages::new(UNIT);
    let src = data.get();
    let mut outs: Vec<_> = (0..=by.len()).map(|_| Pages::new(UNIT)).collect();
    let mut outs = outs.iter_mut();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    if let Some(isal) = isal {
        let table = isal.tables(&[&[0x8e]]);
        let dst = outs.next().unwrap().get_mut();
        let run = move || isal.mul_acc(&table, black_box(src), dst);
        contestants.push(("ISA-L gf_vect_mad".into(), Box::new(run)));
    }
    for &kernel in by {
        let dst = outs.next().unwrap().get_mut();
        let run = move || kernel.mul_acc(dst, 0x8e, black_box(src));
        contestants.push((format!("weft {kernel}"), Box::new(run)));
    }
    report("mul_acc, 64 KiB", UNIT, contestants, false);
}

fn hot_encode(isal: Option<&Isal>, k: usize, r: usize, by: &[Kernel]) {
    let data = Pages::new(k * UNIT);
    let srcs: Vec<&[u8]> = data.get().chunks(UNIT).collect();
    // A Cauchy matrix, as Reed-Solomon codes use: no row that has a faster way.
    let element = |i: usize| u8::try_from(i).unwrap();
    let row = |i| (0..k).map(|j| field::inv(element(k + i) ^ element(j))).collect::<Vec<u8>>();
    let rows: Vec<Vec<u8>> = (0..r).map(row).collect();
    let rows: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
    let mut outs: Vec<_> = (0..=by.len()).map(|_| Pages::new(r * UNIT)).collect();
    let mut outs = outs.iter_mut();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    let (srcs, rows) = (&srcs[..], &rows[..]);
    if let Some(isal) = isal {
        let tables = isal.tables(rows);
        let mut dsts: Vec<&mut [u8]> = outs.next().unwrap().get_mut().chunks_mut(UNIT).collect();
        let run = move || isal.encode(&tables, black_box(srcs), &mut dsts);
        contestants.push(("ISA-L ec_encode_data".into(), Box::new(run)));
    }
    for &kernel in by {
        let mut dsts: Vec<&mut [u8]> = outs.next().unwrap().get_mut().chunks_mut(UNIT).collect();
        let run = move || kernel.encode(black_box(rows), black_box(srcs), &mut dsts);
        contestants.push((format!("weft {kernel}"), Box::new(run)));
    }
    report(&format!("encode {k}+{r}, 64 KiB"), k * UNIT, contestants, false);
}

/// P+Q of 8+2 with data from memory, against copying as much.
fn cold_pq(isal: Option<&Isal>, unit: usize) {
    let data = Pages::new(COLD_BYTES);
    let data = data.get();
    let mut copy = Pages::new(COLD_BYTES);
    let mut parity: Vec<_> = (0..2).map(|_| Pages::new(COLD_BYTES / 4)).collect();
    let mut reused: Vec<_> = (0..2).map(|_| Pages::new(2 * unit)).collect();
    let copy = std::cell::RefCell::new(copy.get_mut());
    let pieces = || {
        for (to, from) in copy.borrow_mut().chunks_mut(unit).zip(data.chunks(unit)) {
            black_box(to).copy_from_slice(from);
        }
    };
    let mut contestants: Vec<Contestant<'_>> = vec![
        ("memcpy, all at once".into(), Box::new(|| copy.borrow_mut().copy_from_slice(data))),
        ("memcpy, unit by unit".into(), Box::new(pieces)),
    ];
    // Two memories for the parity of each: one stripe's, or that of all stripes.
    let [reused_a, reused_b] = &mut reused[..] else { unreachable!() };
    let [parity_a, parity_b] = &mut parity[..] else { unreachable!() };
    let best = kernel();
    if let Some(isal) = isal {
        for (name, out) in [("parity reused", reused_a), ("parity to memory", parity_a)] {
            let run = stripes(data, out, unit, |srcs, p, q| isal.pq(srcs, p, q));
            contestants.push((format!("ISA-L, {name}"), run));
        }
    }
    for (name, out) in [("parity reused", reused_b), ("parity to memory", parity_b)] {
        let run = stripes(data, out, unit, move |srcs, p, q| best.pq(p, q, srcs));
        contestants.push((format!("weft, {name}"), run));
    }
    report(&format!("P+Q 8+2, {} KiB", unit >> 10), COLD_BYTES, contestants, true);
}

/// Computes the parity of all stripes of `data` into `out`, beginning anew where that ends.
fn stripes<'a>(
    data: &'a [u8],
    out: &'a mut Pages,
    unit: usize,
    pq: impl Fn(&[&[u8]], &mut [u8], &mut [u8]) + 'a,
) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        for (i, stripe) in data.chunks(8 * unit).enumerate() {
            let srcs: [&[u8]; 8] = std::array::from_fn(|j| &stripe[j * unit..][..unit]);
            let at = i * 2 * unit % out.len;
            let (p, q) = out.get_mut()[at..][..2 * unit].split_at_mut(unit);
            pq(&srcs, p, q);
        }
    })
}

fn main() {
    let isal = Isal::load().inspect_err(|why| println!("no ISA-L to compare with: {why}")).ok();
    let isal = isal.as_ref();
    let all: Vec<Kernel> = kernels().collect();
    let best = &all[..1];
    println!("kernel {}; GB/s = 10^9 bytes of data read per second, one core", kernel());
    heading("Hot: ratio to ISA-L");
    for unit in [4 << 10, 16 << 10, 256 << 10, 1 << 20] {
        hot_pq(isal, unit, best);
    }
    hot_pq(isal, UNIT, &all);
    hot_xor(isal, 4, best);
    hot_xor(isal, 8, &all);
    hot_mul_acc(isal, &all);
    hot_encode(isal, 12, 4, &all);
    hot_encode(isal, 10, 3, best);
    hot_encode(isal, 16, 6, best);
    heading("Cold: ratio to one memcpy of all the data");
    cold_pq(isal, UNIT);
    cold_pq(isal, 1 << 20);
}
