//! The named workloads: plain shapes, and fits to published statistics.
//!
//! What is published of the traces that weft's experiments need, and what a fit therefore has to
//! assume:
//!
//! | workload | published | source |
//! |---|---|---|
//! | `websearch1` | 99 % reads, mean 15.07 KiB, 994 GiB; 323.75 requests/s, 99.98 % reads of the first 200,000 | DRC, Table 2; PRO, Table 2 |
//! | `websearch2` | 99 %, 15.4 KiB, 1508 GiB | DRC, Table 2 |
//! | `financial1` | 15 %, 3.37 KiB, 182 GiB; 64.06 requests/s in the first 200,000 | DRC, Table 2; PRO, Table 2 |
//! | `financial2` | 78 %, 2.39 KiB, 66 GiB | DRC, Table 2 |
//! | `pro-websearch`, `pro-financial` | 99.98 % and 35.91 % reads, 323.75 and 64.06 requests/s | PRO, Table 2 |
//! | `tpcc` | 20 warehouses, one client | ALV, 5.1 |
//! | `cello99` | "highly bursty", "temporal locality is quite poor" | ALV, 5.1 |
//! | `lm-tbe` | reads only, cut in blocks of 4 KiB | VDF, 5 |
//! | `vdf-web` | reads only, cut in blocks of 4 KiB, 60 GB | VDF, 5 and 6 |
//! | `vdf-maps` | as `lm-tbe` | VDF, 5 |
//!
//! (DRC: Sung and Park, "Fast reconstruction for degraded reads and recovery process in primary
//! array storage systems"; PRO: "Implementation and evaluation of a popularity-based reconstruction
//! optimization algorithm in availability-oriented disk arrays", MSST 2007; ALV: Zhang, Zheng, Shu,
//! "ALV: a new data redistribution approach to RAID-5 scaling"; VDF: "Victim disk first", USENIX
//! ATC 2011.) The "working set" of DRC's table cannot be bytes touched – it is up to 24 times as
//! large as all requests together – so it is taken for the size of the volume. Shapes of the tables
//! of lengths, exponents and burstiness are assumptions in all of them, and everything that is in
//! no paper is called assumed in [`Workload::about`].

use crate::generate::{Arrivals, Places, Size, Workload};

/// Parts of 1000 at lengths in units of 512 bytes.
fn sizes(table: &[(u64, u32)]) -> Vec<Size> {
    table.iter().map(|(sectors, weight)| Size { len: sectors * 512, weight: *weight }).collect()
}

const GIB: u64 = 1 << 30;

/// Every named workload with a line about it.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(name, about, _)| (*name, *about))
}

/// The workload called `name`.
pub fn workload(name: &str) -> Option<Workload> {
    let (name, about, make) = TABLE.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    Some(Workload { about: (*about).to_owned(), ..make(name) })
}

type Row = (&'static str, &'static str, fn(&str) -> Workload);

const TABLE: &[Row] = &[
    ("uniform", "4 KiB reads, evenly spread over 16 GiB, Poisson, 100/s", plain),
    ("zipf", "4 KiB reads, Zipf 0.9 over 64 KiB regions of 16 GiB, Poisson, 100/s", zipf),
    ("sequential", "64 KiB reads, one stream over 16 GiB, at even distances, 100/s", sequential),
    (
        "bursty",
        "4 KiB, 70 % reads, 16 GiB, 80 % of requests in bursts of 10 times the rate",
        bursty,
    ),
    (
        "websearch1",
        "fitted to DRC Table 2 (99 % reads, 15.07 KiB, 994 GiB) and PRO Table 2 (323.75/s); Zipf 0.6 assumed",
        |name| websearch(name, 990_000, 994, &[(16, 600), (32, 117), (48, 83), (64, 200)]),
    ),
    (
        "websearch2",
        "fitted to DRC Table 2 (99 % reads, 15.4 KiB, 1508 GiB); 323.75/s and Zipf 0.6 assumed",
        |name| websearch(name, 990_000, 1508, &[(16, 584), (32, 120), (48, 84), (64, 212)]),
    ),
    (
        "financial1",
        "fitted to DRC Table 2 (15 % reads, 3.37 KiB, 182 GiB) and PRO Table 2 (64.06/s); Zipf 0.9, bursts assumed",
        |name| financial(name, 150_000, 182, FINANCIAL1_WRITES),
    ),
    (
        "financial2",
        "fitted to DRC Table 2 (78 % reads, 2.39 KiB, 66 GiB); 64.06/s, Zipf 0.9, bursts assumed",
        |name| financial(name, 780_000, 66, FINANCIAL2_WRITES),
    ),
    (
        "pro-websearch",
        "fitted to PRO Table 2 (99.98 % reads, 323.75/s); lengths and volume as websearch1",
        |name| websearch(name, 999_800, 994, &[(16, 600), (32, 117), (48, 83), (64, 200)]),
    ),
    (
        "pro-financial",
        "fitted to PRO Table 2 (35.91 % reads, 64.06/s); lengths and volume as financial1",
        |name| financial(name, 359_100, 182, FINANCIAL1_WRITES),
    ),
    (
        "tpcc",
        "ALV 5.1 says 20 warehouses, one client, no figures; assumed: 8 KiB pages, 63 % reads, 200/s, 2 GiB, Zipf 0.8",
        tpcc,
    ),
    (
        "cello99",
        "ALV 5.1 says highly bursty, poor temporal locality, no figures; assumed: 1-8 KiB, 40 % reads, 60/s, 50 GiB, Zipf 0.3",
        cello99,
    ),
    (
        "lm-tbe",
        "VDF 5 says reads only, blocks of 4 KiB, no figures; assumed: 4-64 KiB, 400/s, 500 GiB, 30 % sequential, Zipf 0.8",
        lm_tbe,
    ),
    (
        "vdf-web",
        "VDF 5 and 6 say a search engine, 60 GB; lengths and rate as pro-websearch; assumed: 896 MiB requested, Zipf 0.4",
        vdf_web,
    ),
    (
        "vdf-maps",
        "VDF 5 says Live Maps, reads only; as lm-tbe, but 2 GiB requested, Zipf 0.8 over 64 KiB, all assumed",
        vdf_maps,
    ),
];

fn plain(name: &str) -> Workload {
    Workload::plain(name, 16 * GIB)
}

fn zipf(name: &str) -> Workload {
    let places = Places::Zipf { theta_milli: 900, region_bytes: 64 << 10 };
    Workload { places, ..plain(name) }
}

fn sequential(name: &str) -> Workload {
    let read_sizes = sizes(&[(128, 1)]);
    let write_sizes = read_sizes.clone();
    let arrivals = Arrivals::Even;
    Workload { arrivals, sequential_ppm: 1_000_000, read_sizes, write_sizes, ..plain(name) }
}

fn bursty(name: &str) -> Workload {
    let arrivals = Arrivals::Bursty { factor: 10, share_ppm: 800_000, mean_len: 100 };
    Workload { arrivals, read_ppm: 700_000, ..plain(name) }
}

fn websearch(name: &str, read_ppm: u32, gib: u64, reads: &[(u64, u32)]) -> Workload {
    Workload {
        rate_milli: 323_750,
        read_ppm,
        read_sizes: sizes(reads),
        // There are too few writes to affect the mean.
        write_sizes: sizes(reads),
        device_bytes: gib * GIB,
        sequential_ppm: 60_000,
        places: Places::Zipf { theta_milli: 600, region_bytes: 1 << 20 },
        align_bytes: 8192,
        ..plain(name)
    }
}

const FINANCIAL_READS: &[(u64, u32)] = &[(1, 200), (2, 150), (4, 300), (8, 350)];
const FINANCIAL1_WRITES: &[(u64, u32)] =
    &[(1, 250), (2, 100), (4, 150), (8, 347), (16, 100), (32, 53)];
const FINANCIAL2_WRITES: &[(u64, u32)] =
    &[(1, 250), (2, 150), (4, 190), (8, 300), (16, 95), (32, 15)];

fn financial(name: &str, read_ppm: u32, gib: u64, writes: &[(u64, u32)]) -> Workload {
    Workload {
        rate_milli: 64_060,
        arrivals: Arrivals::Bursty { factor: 5, share_ppm: 500_000, mean_len: 20 },
        read_ppm,
        read_sizes: sizes(FINANCIAL_READS),
        write_sizes: sizes(writes),
        device_bytes: gib * GIB,
        sequential_ppm: 10_000,
        places: Places::Zipf { theta_milli: 900, region_bytes: 64 << 10 },
        align_bytes: 512,
        ..plain(name)
    }
}

fn tpcc(name: &str) -> Workload {
    Workload {
        rate_milli: 200_000,
        read_ppm: 630_000,
        read_sizes: sizes(&[(16, 1)]),
        write_sizes: sizes(&[(16, 960), (32, 40)]),
        device_bytes: 2 * GIB,
        places: Places::Zipf { theta_milli: 800, region_bytes: 64 << 10 },
        align_bytes: 8192,
        ..plain(name)
    }
}

fn cello99(name: &str) -> Workload {
    Workload {
        rate_milli: 60_000,
        arrivals: Arrivals::Bursty { factor: 50, share_ppm: 900_000, mean_len: 100 },
        read_ppm: 400_000,
        read_sizes: sizes(&[(2, 100), (4, 250), (8, 150), (16, 500)]),
        write_sizes: sizes(&[(2, 150), (4, 150), (8, 50), (16, 650)]),
        device_bytes: 50 * GIB,
        sequential_ppm: 50_000,
        places: Places::Zipf { theta_milli: 300, region_bytes: 1 << 20 },
        align_bytes: 1024,
        ..plain(name)
    }
}

fn vdf_web(name: &str) -> Workload {
    let web = websearch(name, 1_000_000, 1, &[(16, 600), (32, 117), (48, 83), (64, 200)]);
    let places = Places::Zipf { theta_milli: 400, region_bytes: 64 << 10 };
    Workload { device_bytes: 896 << 20, places, ..web }
}

fn vdf_maps(name: &str) -> Workload {
    let places = Places::Zipf { theta_milli: 800, region_bytes: 64 << 10 };
    Workload { device_bytes: 2 * GIB, places, ..lm_tbe(name) }
}

fn lm_tbe(name: &str) -> Workload {
    Workload {
        rate_milli: 400_000,
        read_sizes: sizes(&[(8, 250), (16, 250), (32, 250), (128, 250)]),
        device_bytes: 500 * GIB,
        sequential_ppm: 300_000,
        streams: 8,
        places: Places::Zipf { theta_milli: 800, region_bytes: 1 << 20 },
        ..plain(name)
    }
}
