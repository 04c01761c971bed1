//! Requests of every shape: unaligned, overlapping, across stripes, on disks of any sector size and
//! size.

use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, members, options, run, sized_disk};
use crate::common::disk::mix;
use crate::common::*;
use futures_util::future::join_all;
use weft_array::ScrubMode;
use weft_code::SlotNo;
use weft_rt::Frozen;

const EDGES: [i64; 9] = [-513, -512, -511, -1, 0, 1, 511, 512, 513];

#[test]
fn every_unaligned_edge_changes_its_own_bytes_only() {
    run(|rt| async move {
        for sector in [512, 4096] {
            for degraded in [false, true] {
                let disks = (0..4).map(|n| sized_disk(&rt, n, sector, (2 << 20) + 16 * UNIT));
                let mut options = options("raid5");
                options.unit_bytes = 8192;
                let bench = Bench::on(&rt, &options, disks.collect()).await;
                assert_eq!(bench.array.block_bytes(), u64::from(sector));
                let size = 4 * bench.stripe_bytes();
                let mut bytes = pattern(0, size as usize, 1);
                write(&bench.array, 0, &bytes).await;
                if degraded {
                    bench.array.fail(SlotNo(2)).await.expect("can lose one");
                }
                // Around the edges of a sector, a unit and a stripe.
                let points = [u64::from(sector), 8192, bench.stripe_bytes()];
                let mut version = 2;
                for from in points {
                    for to in points.iter().map(|to| to + bench.stripe_bytes()) {
                        for (a, b) in EDGES.iter().zip(EDGES.iter().rev()) {
                            let start = from.checked_add_signed(*a).unwrap_or(0);
                            let end = to.checked_add_signed(*b).unwrap();
                            if end <= start {
                                continue;
                            }
                            let new = pattern(start, (end - start) as usize, version);
                            write(&bench.array, start, &new).await;
                            bytes[start as usize..end as usize].copy_from_slice(&new);
                            let part = read(&bench.array, start, new.len()).await;
                            assert!(part == new, "{start}..{end}");
                            version = version.wrapping_add(1);
                        }
                        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
                    }
                }
                let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!(report.mismatches, 0);
                bench.array.stop().await.expect("stopped");
            }
        }
    });
}

#[test]
fn overlapping_writes_come_in_some_order_in_every_sector() {
    run(|rt| async move {
        for code in ["raid1", "raid5", "raid6", "raid0"] {
            let bench = Bench::new(&rt, code, 4).await;
            let bench = Rc::new(bench);
            let sectors = 3 * bench.stripe_bytes() / 512;
            for round in 0..30u64 {
                let ranges: Vec<(u64, u64)> = (0..8)
                    .map(|n| {
                        let at = mix(round * 64 + n);
                        let start = at % (sectors - 1);
                        (start, 1 + (at >> 32) % (sectors - start - 1).max(1))
                    })
                    .collect();
                let old = read(&bench.array, 0, (sectors * 512) as usize).await;
                let writes = ranges.iter().enumerate().map(|(n, (start, len))| {
                    let data = vec![(round * 8 + n as u64) as u8 | 1; (len * 512) as usize];
                    let (bench, start) = (bench.clone(), *start);
                    async move {
                        let data = Frozen::copy_from(&data);
                        bench.array.write(start * 512, data, n == 3).await.expect("written");
                    }
                });
                join_all(writes).await;
                let now = read(&bench.array, 0, (sectors * 512) as usize).await;
                for (sector, found) in (0..).zip(now.chunks(512)) {
                    let covering: Vec<u8> = (0..)
                        .zip(&ranges)
                        .filter(|(_, (start, len))| (*start..start + len).contains(&sector))
                        .map(|(n, _)| (round * 8 + n) as u8 | 1)
                        .collect();
                    let from = sector as usize * 512;
                    let fits = covering.iter().any(|value| found.iter().all(|b| b == value))
                        || covering.is_empty() && found == &old[from..from + 512];
                    assert!(fits, "{code}, round {round}, sector {sector}");
                }
            }
            let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!(report.mismatches, 0, "{code}");
            bench.array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn disks_of_different_sizes_and_sectors_make_one_array() {
    run(|rt| async move {
        let size = (2 << 20) + 16 * UNIT;
        let disks = vec![
            sized_disk(&rt, 0, 512, size + 512),
            sized_disk(&rt, 1, 4096, size),
            sized_disk(&rt, 2, 512, 2 * size),
        ];
        let bench = Bench::on(&rt, &options("raid5"), disks).await;
        assert_eq!(bench.array.block_bytes(), 4096);
        assert_eq!(bench.array.size_bytes(), 16 * 2 * UNIT);
        let bytes = pattern(0, bench.array.size_bytes() as usize, 1);
        write(&bench.array, 0, &bytes).await;
        write(&bench.array, 700, &[9; 100]).await;
        bench.array.fail(SlotNo(1)).await.expect("can lose one");
        let now = read(&bench.array, 0, bytes.len()).await;
        assert!(now[..700] == bytes[..700] && now[800..] == bytes[800..]);
        assert_eq!(now[700..800], [9; 100]);
        bench.array.stop().await.expect("stopped");
        let array = assemble(&rt, &members(&bench.disks)).await;
        assert!(read(&array, 0, bytes.len()).await == now);
        array.stop().await.expect("stopped");
    });
}
