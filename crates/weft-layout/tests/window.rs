//! The reordering window: the paper's figure and theorem, and the general computation against brute
//! force.

use std::collections::HashMap;
use std::ops::Range;

use weft_code::CodeSpec;
use weft_layout::window::{Direction, Window, safe_window, theorem_1};
use weft_layout::{Algorithm, DiskRange, Layout, Placement, for_code};
use weft_testkit::for_seeds;

/// A geometry, for tests that do not trust [`Placement`].
#[derive(Clone, Debug)]
struct Shape {
    spec: CodeSpec,
    algorithm: Algorithm,
    disks: Vec<usize>,
    data_bytes: u64,
    unit: u64,
    offset: u64,
}

fn shape(name: &str, slots: usize, data_bytes: u64, unit: u64) -> Shape {
    let disks = (0..slots).collect();
    let (spec, algorithm) = (name.parse().unwrap(), Algorithm::default());
    Shape { spec, algorithm, disks, data_bytes, unit, offset: 0 }
}

impl Shape {
    fn placement(&self) -> Placement {
        let slots = self.disks.len();
        Placement::new(self.spec, self.algorithm, slots, self.data_bytes, self.unit)
            .unwrap()
            .with_disks(self.disks.clone())
            .with_data_offset(self.offset)
    }

    fn layout(&self) -> Box<dyn Layout> {
        let rows = self.data_bytes / self.unit;
        for_code(self.spec, self.algorithm, self.disks.len(), rows).unwrap()
    }

    fn stripe_bytes(&self) -> u64 {
        self.spec.shape(self.disks.len()).unwrap().k as u64 * self.unit
    }

    fn size(&self) -> u64 {
        self.layout().stripes(self.data_bytes / self.unit) * self.stripe_bytes()
    }

    /// Every byte of a disk that a stripe occupies.
    fn bytes(&self, layout: &dyn Layout, stripe: u64) -> Vec<(usize, u64)> {
        let mut bytes = Vec::new();
        for unit in 0..layout.width() {
            let place = layout.place(stripe, unit);
            let start = self.offset + place.row * self.unit;
            bytes.extend((start..start + self.unit).map(|byte| (self.disks[place.slot.0], byte)));
        }
        bytes
    }
}

/// Which bytes of the disks belong to old stripes that hold an address in `unmoved`.
fn needed(old: &Shape, unmoved: &Range<u64>) -> HashMap<(usize, u64), u64> {
    let (layout, bytes) = (old.layout(), old.stripe_bytes());
    let mut needed = HashMap::new();
    for stripe in 0..old.size() / bytes {
        let addresses = stripe * bytes..(stripe + 1) * bytes;
        if addresses.start.max(unmoved.start) < addresses.end.min(unmoved.end) {
            needed.extend(old.bytes(&*layout, stripe).into_iter().map(|byte| (byte, stripe)));
        }
    }
    needed
}

/// The limit by trying one new stripe after another, byte by byte.
fn tried(old: &Shape, new: &Shape, direction: Direction, checkpoint: u64) -> u64 {
    let (layout, bytes) = (new.layout(), new.stripe_bytes());
    let data_end = old.size().min(new.size());
    let unmoved = match direction {
        Direction::Up => checkpoint..data_end,
        Direction::Down => 0..checkpoint.min(data_end),
    };
    let needed = needed(old, &unmoved);
    let free =
        |stripe: u64| !new.bytes(&*layout, stripe).iter().any(|byte| needed.contains_key(byte));
    let mut limit = checkpoint / bytes;
    match direction {
        Direction::Up => {
            while limit < data_end.div_ceil(bytes) && free(limit) {
                limit += 1;
            }
        }
        Direction::Down => {
            while limit > 0 && free(limit - 1) {
                limit -= 1;
            }
        }
    }
    limit * bytes
}

/// All checkpoints between new stripes, in the direction of the reshape.
fn checkpoints(window: &Window, bytes: u64) -> Vec<u64> {
    let Range { start, end } = window.addresses();
    let mut all: Vec<u64> = (start / bytes..=end / bytes).map(|stripe| stripe * bytes).collect();
    if window.direction() == Direction::Down {
        all.reverse();
    }
    all
}

fn check(old: &Shape, new: &Shape, window: &mut Window, what: &str) {
    let direction = window.direction();
    let bytes = new.stripe_bytes();
    let all = checkpoints(window, bytes);
    for (number, checkpoint) in all.iter().enumerate() {
        let limit = tried(old, new, direction, *checkpoint);
        // Looking a little further first changes nothing.
        window.limit(*checkpoint, bytes);
        assert_eq!(window.limit(*checkpoint, u64::MAX), limit, "{what} at {checkpoint}");
        let open = |at: &&u64| tried(old, new, direction, **at) != **at;
        let last = all.last().unwrap();
        let opens = all[number..].iter().find(open).unwrap_or(last);
        let cramped = match direction {
            Direction::Up => *checkpoint..*opens,
            Direction::Down => *opens..*checkpoint,
        };
        assert_eq!(window.cramped(*checkpoint, u64::MAX), cramped, "{what} at {checkpoint}");
    }
}

/// Both ways, and each of them back.
fn check_pair(one: &Shape, other: &Shape) {
    for (old, new) in [(one, other), (other, one)] {
        let what = format!("{old:?} to {new:?}");
        let mut window = Window::new(old.placement(), new.placement());
        check(old, new, &mut window, &what);
        let mut back = Window::new(old.placement(), new.placement()).reversed();
        check(new, old, &mut back, &format!("back from {what}"));
    }
}

/// Every kind of geometry, small.
const SMALL: [(&str, usize); 19] = [
    ("raid0", 1),
    ("raid0", 2),
    ("raid0", 4),
    ("raid1", 2),
    ("raid1", 3),
    ("raid10", 3),
    ("raid10", 4),
    ("raid10:f2", 4),
    ("raid10:o2", 3),
    ("raid4", 4),
    ("raid5", 3),
    ("raid5", 4),
    ("raid5", 6),
    ("raid6", 4),
    ("raid6", 5),
    ("rs:2+1", 5),
    ("rs:3+3", 7),
    ("lrc:4,2,1", 7),
    ("drc-g:4,2,1", 7),
];

#[test]
fn it_is_what_brute_force_finds_between_all_small_geometries() {
    for (number, one) in SMALL.iter().enumerate() {
        for other in &SMALL[number..] {
            check_pair(&shape(one.0, one.1, 12, 1), &shape(other.0, other.1, 12, 1));
        }
    }
}

#[test]
fn it_is_what_brute_force_finds_between_random_geometries() {
    for_seeds(0..400, |rng| {
        let mut draw = || {
            let (name, slots) = SMALL[rng.index(SMALL.len())];
            let mut shape = shape(name, slots, 6 + rng.below(19), 1 + rng.below(4));
            if name == "raid5" || name == "raid6" {
                let known = if name == "raid5" { 6 } else { Algorithm::ALL.len() };
                shape.algorithm = Algorithm::ALL[rng.index(known)].0;
            }
            shape.offset = rng.below(8);
            // Some members leave from the middle, or come back in another order.
            for slot in 0..slots {
                shape.disks.swap(slot, rng.index(slots));
            }
            if rng.chance(1, 2) {
                let gone = rng.index(slots + 1);
                shape.disks.iter_mut().for_each(|disk| *disk += usize::from(*disk >= gone));
            }
            shape
        };
        let (one, other) = (draw(), draw());
        check_pair(&one, &other);
    });
}

/// Where a unit of a left-asymmetric RAID-5 lies: data unit `x`, and the parity of stripe `g`.
fn data(m: u64, x: u64) -> (u64, u64) {
    let (g, r) = (x / (m - 1), x % (m - 1));
    (if r < parity(m, g).0 { r } else { r + 1 }, g)
}

fn parity(m: u64, g: u64) -> (u64, u64) {
    (m - 1 - g % m, g)
}

/// Definition 3 of the paper by trying: how many chunks from `x` on can be moved in any order, with
/// the parity of each new stripe that becomes complete, until a chunk that was not moved is
/// overwritten; with `old_parity`, or until parity of a stripe that holds such a chunk is.
fn definition_3(m: u64, n: u64, x: u64, old_parity: bool) -> u64 {
    let (data_old, data_new) = (m - 1, m + n - 1);
    // Which chunk a place holds that is still needed; none: parity.
    let mut held = HashMap::new();
    let stripes = (x / data_old)..(x / data_old + 2 * (x + 10));
    for g in stripes {
        for y in (g * data_old..(g + 1) * data_old).filter(|y| *y >= x) {
            held.insert(data(m, y), Some(y));
        }
        if old_parity {
            held.insert(parity(m, g), None);
        }
    }
    let taken = |place, by| held.get(&place).is_some_and(|chunk| *chunk != by);
    let moved = |y: u64| {
        let completes = (y + 1).is_multiple_of(data_new);
        taken(data(m + n, y), Some(y))
            || completes && taken(parity(m + n, y / data_new), None)
            || completes && held.contains_key(&parity(m + n, y / data_new))
    };
    (x..).take_while(|y| !moved(*y)).count() as u64
}

/// The sizes that Fig. 1 gives are those of a window that protects old parity, not the theorem's.
#[test]
fn the_papers_first_figure() {
    let at = [2, 3, 4, 6, 9, 13];
    assert_eq!(at.map(|x| definition_3(3, 1, x, true)), [1, 1, 2, 3, 4, 6]);
    assert_eq!(at.map(|x| theorem_1(3, 1, x)), [1, 2, 3, 3, 5, 6]);
    assert_eq!(theorem_1(3, 1, 18), 9);
    assert_eq!(safe_window(3, 1, 18), 9);
}

/// The theorem is what its own definition allows, or less.
#[test]
fn the_theorem_keeps_data_that_was_not_moved() {
    for (m, n) in [(3, 1), (3, 2), (4, 1), (4, 4), (5, 1), (5, 3), (7, 2), (9, 1)] {
        for x in 0..300 {
            assert!(theorem_1(m, n, x) <= definition_3(m, n, x, false), "A({m},{n}) at {x}");
        }
    }
}

/// At the begin of a new stripe, the closed form, the theorem in whole new stripes and the general
/// computation are the same.
#[test]
fn the_closed_form_is_the_theorem_in_whole_stripes() {
    for m in 3..10u64 {
        for n in 1..6u64 {
            let new_stripe = m + n - 1;
            let raid5 = |slots: u64| {
                let slots = usize::try_from(slots).unwrap();
                let rows = 400 * new_stripe / (m - 1);
                Placement::new(CodeSpec::Raid5, Algorithm::LeftAsymmetric, slots, rows, 1).unwrap()
            };
            let mut window = Window::new(raid5(m), raid5(m + n));
            assert_eq!(window.direction(), Direction::Up);
            let end = window.addresses().end;
            for x in (0..400).map(|stripe| stripe * new_stripe) {
                let safe = safe_window(m, n, x);
                assert_eq!(
                    theorem_1(m, n, x) / new_stripe * new_stripe,
                    safe / new_stripe * new_stripe
                );
                if x + safe < end {
                    let whole = safe / new_stripe * new_stripe;
                    assert_eq!(window.limit(x, u64::MAX), x + whole, "A({m},{n}) at {x}");
                    assert_eq!(safe, whole, "A({m},{n}) at {x}");
                }
            }
            // As many new stripes as it takes until the hole holds one.
            let cramped = (m - 1).div_ceil(n) * new_stripe;
            assert_eq!(window.cramped(0, u64::MAX), 0..cramped, "A({m},{n})");
        }
    }
}

/// Whether, after a crash in which the new stripes' units that `written` names reached the disks,
/// any old stripe with an unmoved address cannot be read with one disk lost: it lost a unit to a
/// write.
fn loses(m: u64, n: u64, checkpoint: u64, written: Range<u64>) -> bool {
    let (data_old, data_new) = (m - 1, m + n - 1);
    let chunks = written.clone().map(|x| data(m + n, x));
    let parities = (0..written.end / data_new).filter(|g| (g + 1) * data_new > written.start);
    let overwritten: Vec<(u64, u64)> =
        chunks.chain(parities.map(|g| parity(m + n, g))).filter(|place| place.0 < m).collect();
    // Each row of the first m disks is one old stripe, and every unit of it is needed.
    overwritten.iter().any(|(_, row)| (row + 1) * data_old > checkpoint)
}

/// A crash together with one lost disk: the printed theorem loses data, whole new stripes do not.
#[test]
fn the_printed_theorem_is_not_safe() {
    for (m, n) in [(3, 1), (3, 2), (4, 1), (5, 1), (7, 2), (9, 5)] {
        let unsafe_at = (0..300).filter(|x| loses(m, n, *x, *x..x + theorem_1(m, n, *x))).count();
        assert!(unsafe_at > 100, "A({m},{n}): {unsafe_at}");
        for x in (0..100).map(|stripe| stripe * (m + n - 1)) {
            assert!(!loses(m, n, x, x..x + safe_window(m, n, x)), "A({m},{n}) at {x}");
        }
    }
}

/// The table and the drawing at the head of the module.
#[test]
fn the_worked_example() {
    let raid5 = |slots, rows| {
        Placement::new(CodeSpec::Raid5, Algorithm::LeftAsymmetric, slots, rows, 1).unwrap()
    };
    let mut window = Window::new(raid5(3, 100), raid5(4, 100));
    assert_eq!(window.cramped(0, u64::MAX), 0..6);
    let limits = [0, 3, 6, 9, 12, 18].map(|checkpoint| window.limit(checkpoint, u64::MAX));
    assert_eq!(limits, [0, 3, 9, 12, 18, 27]);

    // The old rows of the drawing: three for addresses 18 to 23 (9 to 11), two of them new (6, 7).
    let [old, new] = window.placements();
    let extent = |disk, bytes| DiskRange { disk, bytes };
    assert_eq!(old.rows(18..24), [0, 1, 2].map(|disk| extent(disk, 9..12)));
    assert_eq!(new.rows(18..24), [0, 1, 2, 3].map(|disk| extent(disk, 6..8)));
    assert_eq!(
        old.data(18..24),
        [extent(0, 9..11), extent(1, 9..10), extent(1, 11..12), extent(2, 10..12)]
    );
    assert!(old.rows(18..18).is_empty());
}

/// Shrinking starts with the free end of the disks and ends cramped, at the beginning.
#[test]
fn shrinking_works_backwards() {
    let (four, three) = (shape("raid5", 4, 300, 1), shape("raid5", 3, 300, 1));
    let mut window = Window::new(four.placement(), three.placement());
    assert_eq!(window.direction(), Direction::Down);
    assert_eq!(window.addresses(), 0..600);
    // Of 300 rows 200 hold data; the last 200 addresses have room in the others.
    assert_eq!(window.limit(600, u64::MAX), 400);
    assert_eq!(window.limit(400, 2), 398);
    assert_eq!(window.cramped(600, u64::MAX), 600..600);
    assert_eq!(window.cramped(4, u64::MAX), 0..4);
}

/// With as much data in each row as before, nothing is ever free, unless the data begins lower.
#[test]
fn a_lower_begin_of_the_data_opens_a_window() {
    let (raid5, raid6) = (shape("raid5", 4, 60, 2), shape("raid6", 5, 60, 2));
    let mut window = Window::new(raid5.placement(), raid6.placement());
    assert_eq!(window.cramped(0, u64::MAX), 0..180);
    assert_eq!(window.limit(60, u64::MAX), 60);
    // Half a new stripe is in use: it cannot be written without a backup.
    assert_eq!(window.limit(63, u64::MAX), 63);
    let raid5 = Shape { offset: 8, ..raid5 };
    let mut window = Window::new(raid5.placement(), raid6.placement());
    assert!(window.cramped(0, u64::MAX).is_empty());
    for checkpoint in (0..180).step_by(6) {
        assert_eq!(window.limit(checkpoint, u64::MAX), (checkpoint + 24).min(180));
    }
}
