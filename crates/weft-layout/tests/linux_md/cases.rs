//! The arrays to compare: mdadm's options and weft's names.

use weft_code::{CodeSpec, sets};
use weft_layout::Algorithm;

/// One array.
#[derive(Debug, Clone)]
pub struct Case {
    pub spec: CodeSpec,
    pub algorithm: Algorithm,
    pub members: usize,
    pub unit_bytes: usize,
    pub data_offset_kib: u64,
}

impl Case {
    /// A name for files and messages, such as `raid6-5-left-symmetric-16K`.
    pub fn name(&self) -> String {
        let spec = self.spec.to_string().replace(':', "");
        format!("{spec}-{}-{}-{}K", self.members, self.algorithm, self.unit_bytes / 1024)
    }

    /// The case's line in the guest's list; `guest.sh` says what it holds.
    pub fn guest_line(&self, turn: usize) -> String {
        // The largest sets in turn; the host tries them all.
        let sets = self.lost_sets();
        let largest = sets.last().map_or(0, Vec::len);
        let sets: Vec<_> = sets.iter().filter(|set| set.len() == largest).collect();
        let lost = sets.get(turn * 7 % sets.len().max(1)).map_or_else(
            || "-".into(),
            |set| set.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        );
        let (name, options) = (self.name(), self.mdadm_options());
        format!("{name} {} {} {lost} {options}", self.members, self.data_offset_kib)
    }

    fn mdadm_options(&self) -> String {
        let chunk = self.unit_bytes / 1024;
        match self.spec {
            CodeSpec::Raid0 => format!("--level=0 --chunk={chunk}"),
            CodeSpec::Raid1 => "--level=1".into(),
            CodeSpec::Raid10 { .. } => {
                let layout = self.spec.to_string().replace("raid10", "").replace(':', "");
                let layout = if layout.is_empty() { "n2".into() } else { layout };
                format!("--level=10 --layout={layout} --chunk={chunk}")
            }
            CodeSpec::Raid4 => format!("--level=4 --chunk={chunk}"),
            CodeSpec::Raid5 => format!("--level=5 --layout={} --chunk={chunk}", self.algorithm),
            CodeSpec::Raid6 => format!("--level=6 --layout={} --chunk={chunk}", self.algorithm),
            other => panic!("md has no {other}"),
        }
    }

    /// Every set of members without which the array must still be read.
    pub fn lost_sets(&self) -> Vec<Vec<usize>> {
        let tolerance = match self.spec {
            CodeSpec::Raid0 => 0,
            CodeSpec::Raid1 => self.members - 1,
            CodeSpec::Raid10 { copies, .. } => copies - 1,
            CodeSpec::Raid4 | CodeSpec::Raid5 => 1,
            CodeSpec::Raid6 => 2,
            other => panic!("md has no {other}"),
        };
        let of_size = |size| sets(self.members, size).map(|set| set.iter().collect());
        (1..=tolerance).flat_map(of_size).collect()
    }
}

/// All cases. Units and data offsets take turns, so that none is right by luck.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |spec: &str, algorithm: Algorithm, members: usize| {
        let turn = cases.len();
        cases.push(Case {
            spec: spec.parse().expect("a level"),
            algorithm,
            members,
            unit_bytes: [16, 64, 4, 32][turn % 4] * 1024,
            data_offset_kib: [128, 256, 192][turn % 3],
        });
    };
    let md_default = Algorithm::default();
    for members in [2, 3, 5] {
        add("raid0", md_default, members);
    }
    for members in [2, 3] {
        add("raid1", md_default, members);
    }
    for arrangement in ["n", "f", "o"] {
        for (copies, members) in [(2, 3), (2, 4), (3, 5)] {
            add(&format!("raid10:{arrangement}{copies}"), md_default, members);
        }
    }
    for members in [3, 5] {
        add("raid4", md_default, members);
    }
    for (algorithm, _) in Algorithm::ALL.iter().filter(|(algorithm, _)| !algorithm.raid6_only()) {
        add("raid5", *algorithm, 5);
    }
    add("raid5", md_default, 3);
    add("raid5", md_default, 4);
    for (algorithm, _) in Algorithm::ALL {
        add("raid6", algorithm, 6);
    }
    add("raid6", md_default, 4);
    add("raid6", md_default, 7);
    cases
}
