//! A kernel keeps names, attributes and pages of files under the tokens of this node, and locks
//! pages while it waits for answers: other nodes get their tokens, and find what programs wrote.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::common::contender::Contender;
use crate::common::disk::TestDisk;
use crate::common::test_disks::{on_test_disks, seen};
use crate::common::waits::{a_while, begin};
use crate::common::*;
use weft_fs::{Dropped, Forgotten, Fs, Ino, KernelCache, ROOT, SetAttr};
use weft_random::Rng;
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Frozen, MILLISECOND, Rt, SECOND};
use weft_token::{Kind, Mode};

const ALL: Range<u64> = 0..u64::MAX;
const PAGE: usize = BLOCK as usize;

/// A page of a file: none if it is not there, else its contents and whether they are changed.
struct Page {
    lock: Semaphore,
    contents: RefCell<Option<(Vec<u8>, bool)>>,
}

/// A kernel with pages of files. It locks a page while it reads or writes it, as Linux does.
struct Kernel {
    rt: Rt,
    fs: Fs,
    pages: RefCell<BTreeMap<(Ino, u64), Rc<Page>>>,
    /// Folders and files of which it has forgotten names and attributes.
    forgotten: RefCell<BTreeSet<(&'static str, Ino)>>,
    /// Times that it has dropped pages.
    drops: Cell<u64>,
}

/// What a kernel is asked to do; this does not keep the file system.
struct Door(std::rc::Weak<Kernel>);

impl Kernel {
    fn new(rt: &Rt, fs: &Fs) -> Rc<Self> {
        let kernel = Rc::new(Self {
            rt: rt.clone(),
            fs: fs.clone(),
            pages: RefCell::default(),
            forgotten: RefCell::default(),
            drops: Cell::new(0),
        });
        fs.share();
        fs.keep_in_kernel(Rc::new(Door(Rc::downgrade(&kernel))));
        kernel
    }

    async fn page(&self, ino: Ino, block: u64) -> (Rc<Page>, Permit) {
        let fresh = || Rc::new(Page { lock: Semaphore::new(1), contents: RefCell::default() });
        let page = self.pages.borrow_mut().entry((ino, block)).or_insert_with(fresh).clone();
        let locked = page.lock.acquire(1).await;
        (page, locked)
    }

    /// The page with its contents.
    async fn filled(&self, ino: Ino, block: u64) -> (Rc<Page>, Permit) {
        let (page, locked) = self.page(ino, block).await;
        if page.contents.borrow().is_none() {
            let read = self.fs.read(ino, block * BLOCK, PAGE).await.expect("read");
            let mut bytes = read.to_vec();
            bytes.resize(PAGE, 0);
            *page.contents.borrow_mut() = Some((bytes, false));
        }
        (page, locked)
    }

    /// A program looks at a page.
    async fn load(&self, ino: Ino, block: u64) -> u8 {
        let (page, _locked) = self.filled(ino, block).await;
        let contents = page.contents.borrow();
        contents.as_ref().expect("it is there").0[7]
    }

    /// A program changes a page of a mapped file.
    async fn store(&self, ino: Ino, block: u64, value: u8) {
        let (page, _locked) = self.filled(ino, block).await;
        if let Some((bytes, is_changed)) = &mut *page.contents.borrow_mut() {
            bytes[7] = value;
            *is_changed = true;
        }
    }

    /// A program writes a part of a page.
    async fn write(&self, ino: Ino, block: u64, part: Range<usize>, value: u8) {
        let (page, _locked) = self.page(ino, block).await;
        let data = vec![value; part.len()];
        let offset = block * BLOCK + part.start as u64;
        self.fs.write(ino, offset, Frozen::copy_from(&data)).await.expect("written");
        let mut contents = page.contents.borrow_mut();
        match &mut *contents {
            Some((bytes, _)) => bytes[part].copy_from_slice(&data),
            None if part.len() == PAGE => *contents = Some((data, false)),
            // The rest of it is to be read.
            None => {}
        }
    }

    fn has_pages(&self, ino: Ino) -> bool {
        let pages = self.pages.borrow();
        let mut of = pages.range((ino, 0)..=(ino, u64::MAX));
        of.any(|(_, page)| page.contents.borrow().is_some())
    }

    async fn drop_pages(&self, ino: Ino, bytes: Range<u64>) {
        self.drops.set(self.drops.get() + 1);
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let of = (ino, blocks.start)..(ino, blocks.end);
        let there: Vec<_> =
            self.pages.borrow().range(of).map(|(at, page)| (*at, page.clone())).collect();
        for ((_, block), page) in there {
            let _locked = page.lock.acquire(1).await;
            let changed = page.contents.take();
            if let Some((data, true)) = changed {
                let written = self.fs.write(ino, block * BLOCK, Frozen::copy_from(&data)).await;
                written.expect("written");
            }
        }
    }
}

impl Door {
    fn with(&self, work: impl AsyncFnOnce(Rc<Kernel>) + 'static) -> Forgotten {
        let kernel = self.0.upgrade();
        Box::pin(async move {
            if let Some(kernel) = kernel {
                kernel.rt.yield_now().await;
                work(kernel).await;
            }
        })
    }
}

impl KernelCache for Door {
    fn forget_names(&self, folders: Vec<Ino>) -> Forgotten {
        self.with(async move |kernel| {
            kernel.forgotten.borrow_mut().extend(folders.iter().map(|ino| ("names", *ino)));
        })
    }

    fn forget_attributes(&self, files: Vec<Ino>) -> Forgotten {
        self.with(async move |kernel| {
            kernel.forgotten.borrow_mut().extend(files.iter().map(|ino| ("attributes", *ino)));
        })
    }

    fn drop_pages(&self, ino: Ino, bytes: Range<u64>, dropped: Dropped) -> Forgotten {
        self.with(async move |kernel| {
            kernel.drop_pages(ino, bytes).await;
            dropped.set();
        })
    }
}

/// A file of 20 pages that a program has mapped, and another node.
struct Mapped {
    disks: Vec<Rc<TestDisk>>,
    fs: Fs,
    ino: Ino,
    kernel: Rc<Kernel>,
    other: Rc<Contender>,
}

impl Mapped {
    async fn new(rt: &Rt) -> Self {
        let (disks, fs) = on_test_disks(rt, 4).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(20 * PAGE, 1)).await;
        let kernel = Kernel::new(rt, &fs);
        fs.begin_use(ino);
        fs.begin_writes(ino).await;
        let other = Contender::new(rt, &fs, 1);
        Self { disks, fs, ino, kernel, other }
    }
}

#[test]
fn the_kernel_forgets_what_another_node_may_change() {
    run(|rt| async move {
        let (_, fs) = on_test_disks(&rt, 4).await;
        let ino = make(&fs, "file").await;
        let kernel = Kernel::new(&rt, &fs);
        fs.begin_use(ino);
        assert_eq!(kernel.load(ino, 0).await, 0);
        let other = Contender::new(&rt, &fs, 1);
        for mode in [Mode::Shared, Mode::Exclusive] {
            let names = other.acquire_all(Kind::Names, ROOT, mode).await;
            let attributes = other.acquire_all(Kind::Attributes, ino, mode).await;
            let data = other.acquire_all(Kind::Data, ino, mode).await;
            let forgotten: Vec<_> = kernel.forgotten.take().into_iter().collect();
            match mode {
                Mode::Shared => {
                    assert_eq!(forgotten, []);
                    assert!(kernel.has_pages(ino), "it may keep what no node changes");
                }
                Mode::Exclusive => {
                    assert_eq!(forgotten, [("attributes", ino), ("names", ROOT)]);
                    assert!(!kernel.has_pages(ino));
                }
            }
            for token in [data, attributes, names] {
                other.done(token);
            }
        }
        assert_eq!(kernel.load(ino, 0).await, 0);
        // What the kernel does not know, it is not told of.
        let drops = kernel.drops.get();
        fs.end_uses(ino, 1).await.expect("ended");
        let attributes = other.acquire_all(Kind::Attributes, ino, Mode::Exclusive).await;
        assert_eq!((kernel.forgotten.take().len(), kernel.drops.get()), (0, drops));
        other.done(attributes);
    });
}

#[test]
fn changed_pages_come_back_before_another_node_reads() {
    run(|rt| async move {
        let Mapped { disks, fs, ino, kernel, other } = Mapped::new(&rt).await;
        for (n, mode) in [(0, Mode::Shared), (1, Mode::Exclusive)] {
            kernel.store(ino, 5, 10 + n).await;
            let data = other.acquire_all(Kind::Data, ino, mode).await;
            assert!(!kernel.has_pages(ino), "{mode:?}: a program might change them");
            let there = read_all(&seen(&rt, &disks).await, ino).await;
            assert_eq!(there[5 * PAGE + 7], 10 + n, "{mode:?}");
            let ours = kernel.clone();
            let changed = begin(&rt, async move { ours.store(ino, 5, 20 + n).await });
            a_while(&rt).await;
            assert!(!changed.get(), "{mode:?}");
            other.done(data);
            a_while(&rt).await;
            assert!(changed.get());
        }
        fs.end_writes(ino);
    });
}

#[test]
fn a_new_size_is_set_while_changed_pages_come_back() {
    run(|rt| async move {
        let Mapped { fs, ino, kernel, other, .. } = Mapped::new(&rt).await;
        kernel.store(ino, 3, 9).await;
        // While a size is set, Linux writes no page; here the page's lock stands for that.
        let (_, locked) = kernel.page(ino, 3).await;
        let of_other = other.clone();
        let got = begin(&rt, async move {
            let data = of_other.acquire_all(Kind::Data, ino, Mode::Exclusive).await;
            of_other.done(data);
        });
        a_while(&rt).await;
        assert!(!got.get());
        let set = SetAttr { size: Some(10 * BLOCK), ..SetAttr::default() };
        fs.set_attr(ino, set).await.expect("set");
        drop(locked);
        a_while(&rt).await;
        assert!(got.get());
        assert_eq!(fs.attr(ino).await.expect("there").size, 10 * BLOCK);
        assert_eq!(kernel.load(ino, 3).await, 9);
        fs.end_writes(ino);
    });
}

/// Programs load, store and write pages of two files while other nodes want them: nothing waits
/// for ever, each program finds what was written last, and so do other nodes.
#[test]
fn programs_and_other_nodes_find_what_was_written_last() {
    for seed in 0..12 {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let mut inos = Vec::new();
            for name in ["one", "two"] {
                let ino = make_as(&fs, name, "raid5").await;
                write(&fs, ino, 0, &vec![0; 8 * PAGE]).await;
                inos.push(ino);
            }
            let kernel = Kernel::new(&rt, &fs);
            for ino in &inos {
                fs.begin_use(*ino);
            }
            let (ended, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            // Each program has pages of its own in both files, and looks at all.
            for n in 0..4_u64 {
                let (rt, kernel, fs, inos) = (rt.clone(), kernel.clone(), fs.clone(), inos.clone());
                let ended = ended.clone();
                drop(rt.clone().spawn(async move {
                    let mut rng = Rng::new(seed * 10 + n);
                    let mut last = [[0_u8; 2]; 2];
                    for step in 0..60_u8 {
                        let (file, own) = (rng.index(2), rng.below(2));
                        let (ino, block) = (inos[file], 2 * n + own);
                        match rng.below(4) {
                            0 => drop(kernel.load(ino, rng.below(8)).await),
                            1 => {
                                let value = kernel.load(ino, block).await;
                                assert_eq!(value, last[file][own as usize], "seed {seed}: {n}");
                            }
                            kind => {
                                fs.begin_writes(ino).await;
                                last[file][own as usize] = step + 1;
                                match kind {
                                    // Parts of one page, one after the other.
                                    2 => {
                                        let middle = 8 + rng.index(PAGE - 8);
                                        kernel.write(ino, block, 0..middle, step + 1).await;
                                        kernel.write(ino, block, middle..PAGE, step + 1).await;
                                    }
                                    _ => kernel.store(ino, block, step + 1).await,
                                }
                                // Changed pages are written before the file is closed.
                                kernel.drop_pages(ino, 0..8 * BLOCK).await;
                                fs.end_writes(ino);
                            }
                        }
                        rt.sleep(rng.below(3) * MILLISECOND).await;
                    }
                    ended.set(ended.get() + 1);
                }));
            }
            let others = [Contender::new(&rt, &fs, 1), Contender::new(&rt, &fs, 2)];
            for (n, other) in others.into_iter().enumerate() {
                let (rt, kernel, inos) = (rt.clone(), kernel.clone(), inos.clone());
                let (disks, failed) = (disks.clone(), failed.clone());
                drop(rt.clone().spawn(async move {
                    let mut rng = Rng::new(seed + 1000 * n as u64);
                    loop {
                        let ino = *rng.pick(&inos);
                        let kind = *rng.pick(&[Kind::Attributes, Kind::Data, Kind::Data]);
                        let (range, mode) = match (kind, rng.below(2)) {
                            (Kind::Attributes, 0) => (0..1, Mode::Shared),
                            (Kind::Attributes, _) => (0..1, Mode::Exclusive),
                            (_, 0) => (rng.below(4)..4 + rng.below(4), Mode::Shared),
                            (_, _) => (ALL, Mode::Exclusive),
                        };
                        let token = other.acquire(kind, ino, range.clone(), mode).await;
                        if mode == Mode::Exclusive && kernel.has_pages(ino) {
                            failed.set(true);
                        }
                        if range == ALL && rng.chance(20) {
                            let before = read_all(&seen(&rt, &disks).await, ino).await;
                            rt.sleep(2 * MILLISECOND).await;
                            let after = read_all(&seen(&rt, &disks).await, ino).await;
                            failed.set(failed.get() || before != after);
                        }
                        rt.sleep(rng.below(3) * MILLISECOND).await;
                        other.done(token);
                        rt.sleep(rng.below(3) * MILLISECOND).await;
                    }
                }));
            }
            for _ in 0..600 {
                if ended.get() == 4 {
                    break;
                }
                rt.sleep(SECOND / 10).await;
            }
            assert_eq!(ended.get(), 4, "seed {seed}: programs wait for ever");
            assert!(!failed.get(), "seed {seed}: another node has a token of what is kept here");
            assert_sound(&fs).await;
        });
    }
}
