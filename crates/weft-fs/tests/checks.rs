//! A check of all that is stored goes in steps: others go on meanwhile, and what they change is not
//! taken for damage.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::join;
use weft_fs::{Fs, Ino, Kind, ROOT, Rename};
use weft_random::Rng;
use weft_rt::Frozen;

use crate::common::*;

/// Folders of which one is long, and a file with many records.
async fn fill(fs: &Fs) -> (Vec<Ino>, Ino) {
    let mut folders = vec![ROOT];
    for n in 0..40 {
        let above = folders[n / 3];
        let name = format!("folder {n}");
        let made = fs.make(above, name.as_bytes(), new_file(Kind::Folder)).await.expect("made");
        folders.push(made.0);
    }
    for n in 0..600 {
        let folder = if n % 4 == 0 { folders[n / 4 % 40] } else { ROOT };
        fs.make(folder, format!("file {n}").as_bytes(), new_file(Kind::File)).await.expect("made");
    }
    let long = make_as(fs, "long", "auto").await;
    for n in 0..600 {
        write(fs, long, n * 7 * BLOCK, &pattern(BLOCK as usize, n)).await;
    }
    fs.sync().await.expect("synced");
    (folders, long)
}

#[test]
fn others_go_on_during_a_check_and_nothing_of_that_is_damage() {
    for seed in 0..2 {
        run(move |rt| async move {
            let fs = made_by(&rt, &ram(&[64; 4]), seed).await;
            let (folders, long) = fill(&fs).await;
            let (done, is_checked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (count, ends) = (done.clone(), is_checked.clone());
            let others = async {
                let mut rng = Rng::new(seed);
                while !ends.get() && count.get() < 4000 {
                    let name = |n: u64| format!("file {n}").into_bytes();
                    let (from, to) = (*rng.pick(&folders), *rng.pick(&folders));
                    let (n, m) = (name(rng.below(600)), name(rng.below(600)));
                    // Many of them are not there.
                    match rng.below(6) {
                        0 => drop(fs.make(to, &n, new_file(Kind::File)).await),
                        1 => drop(fs.unlink(from, &n).await),
                        2 => {
                            if let Ok((ino, _)) = fs.lookup(from, &n).await {
                                drop(fs.link(ino, to, &m).await);
                            }
                        }
                        3 => {
                            // Its records grow in number until the metadata is full.
                            let at = rng.below(5000) * BLOCK;
                            let data = Frozen::copy_from(&pattern(3 * BLOCK as usize, at));
                            drop(fs.write(long, at, data).await);
                        }
                        _ => drop(fs.rename((from, &n), (to, &m), Rename::Replace).await),
                    }
                    count.set(count.get() + 1);
                    rt.yield_now().await;
                }
            };
            let check = async {
                let report = fs.check(false).await;
                is_checked.set(true);
                report.expect("checked")
            };
            let (report, ()) = join(check, others).await;
            assert_eq!(report.findings, [], "seed {seed}");
            assert!(report.inodes > 400, "{} inodes", report.inodes);
            assert!(done.get() > 100, "{} operations went on", done.get());
            assert_sound(&fs).await;
        });
    }
}
