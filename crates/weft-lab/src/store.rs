//! Finished cells in files, so that a run can be interrupted and go on, or be one of several.
//!
//! A run of an experiment, or a shard of it, has a folder of its own, `DIR/NAME/3-of-16`: one file
//! describes the run, and each finished cell is one more. A file is complete or not there: it is
//! written beside its place, made durable and renamed. Cell c belongs to shard c mod n, so that
//! costly cells, which are neighbours, are spread. What a cell found has the same bytes wherever it
//! was measured (`Found`), and so has the figure that is made of all.
//!
//! Cells of different runs never mix: the folder records the experiment, seed, divisor, traces,
//! modelled disks and version of weft of its cells, and another run is refused.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

use crate::found::Found;

/// Part `number` of `of`, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Which part.
    pub number: usize,
    /// How many parts there are.
    pub of: usize,
}

impl Shard {
    /// All of a run.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    pub(crate) fn has(self, cell: usize) -> bool {
        cell % self.of == self.number - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        parts.filter(|shard| (1..=shard.of).contains(&shard.number)).ok_or_else(|| {
            format!("`{text}` is no shard: give its number and how many there are, as in 3/16")
        })
    }
}

/// Where finished cells are.
#[derive(Clone, Debug)]
pub enum Keep {
    /// They are kept in a folder.
    In {
        /// The folder.
        dir: PathBuf,
        /// Whether it may have cells of the same run already.
        resume: bool,
        /// Which cells are measured.
        shard: Shard,
        /// The experiment's place among the experiments of the run.
        place: usize,
    },
    /// All were measured before: the shards, in order.
    Merged(Vec<Part>),
}

/// A trace or a modelled disk that a run uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    what: String,
    checksum: u64,
}

impl Input {
    pub(crate) fn new(what: String, bytes: &[u8]) -> Self {
        Self { what, checksum: checksum(bytes) }
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// What is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The version of weft.
    pub weft: String,
    /// The experiment's name.
    pub name: String,
    /// Its file.
    pub text: String,
    /// The folder of the file, if it is a user's own.
    pub folder: Option<PathBuf>,
    /// The seed.
    pub seed: u64,
    /// The divisor of requests.
    pub divide: u64,
    /// The traces and disks.
    pub inputs: Vec<Input>,
    /// How many cells there are.
    pub cells: usize,
    /// The experiment's place among the experiments of the run.
    pub place: usize,
    /// Which part this is.
    pub shard: Shard,
}

impl Plan {
    /// What differs from another run, if anything does that changes its cells.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        let said = |what: &str, own: &dyn fmt::Display, its: &dyn fmt::Display| {
            Some(format!("{what} was {its}, now it is {own}"))
        };
        if self.weft != other.weft {
            return said("the version of weft", &self.weft, &other.weft);
        }
        if self.text != other.text {
            return Some("the experiment's file has changed".into());
        }
        if self.seed != other.seed {
            return said("--seed", &self.seed, &other.seed);
        }
        if self.divide != other.divide {
            return said("--divide", &self.divide, &other.divide);
        }
        let changed = self.inputs.iter().find(|input| !other.inputs.contains(input));
        let gone = || other.inputs.iter().find(|input| !self.inputs.contains(input));
        if let Some(input) = changed.or_else(gone) {
            return Some(format!("{} is another one", input.what));
        }
        (self.cells != other.cells).then(|| "the number of cells is another one".into())
    }
}

/// A run's folder.
#[derive(Clone, Debug)]
pub struct Part {
    /// The folder.
    pub dir: PathBuf,
    /// What is run there.
    pub plan: Plan,
}

const PLAN: &str = "run.json";

impl Part {
    /// The folder of a run that starts, or goes on.
    pub(crate) fn open(dir: &Path, resume: bool, plan: Plan) -> Result<Self, String> {
        let Shard { number, of } = plan.shard;
        let dir = dir.join(&plan.name).join(format!("{number}-of-{of}"));
        let failed = |e: io::Error| format!("{}: {e}", dir.display());
        if dir.join(PLAN).exists() {
            let begun = Self::read(&dir)?;
            if let Some(what) = plan.differs(&begun.plan) {
                return Err(format!("{} has cells of another run: {what}", dir.display()));
            }
            if !resume {
                let dir = dir.display();
                return Err(format!(
                    "{dir} has cells of this run already; --resume goes on with it"
                ));
            }
        } else {
            fs::create_dir_all(&dir).map_err(failed)?;
            let json = serde_json::to_vec_pretty(&plan).map_err(|e| e.to_string())?;
            write(&dir.join(PLAN), &json).map_err(failed)?;
        }
        Ok(Self { dir, plan })
    }

    fn read(dir: &Path) -> Result<Self, String> {
        let path = dir.join(PLAN);
        let failed = |e: &dyn fmt::Display| format!("{}: {e}", path.display());
        let text = fs::read(&path).map_err(|e| failed(&e))?;
        let plan = serde_json::from_slice(&text).map_err(|e| failed(&e))?;
        Ok(Self { dir: dir.to_owned(), plan })
    }

    /// What a cell found, if it is finished. A damaged file counts as none.
    pub(crate) fn load<T: Found>(&self, cell: usize) -> Option<T> {
        let bytes = fs::read(self.dir.join(cell.to_string())).ok()?;
        let (mut found, sum) = bytes.split_last_chunk()?;
        let is_whole = checksum(found) == u64::from_le_bytes(*sum);
        is_whole.then(|| T::take(&mut found)).flatten().filter(|_| found.is_empty())
    }

    /// Keeps what a cell found.
    pub(crate) fn save<T: Found>(&self, cell: usize, found: &T) -> Result<(), String> {
        let mut bytes = Vec::new();
        found.put(&mut bytes);
        bytes.extend(checksum(&bytes).to_le_bytes());
        let path = self.dir.join(cell.to_string());
        write(&path, &bytes).map_err(|e| format!("{}: {e}", path.display()))
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = fs::File::create(&beside)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// The shards in some folders, by experiment: each complete set in order.
///
/// # Errors
/// If shards are missing, there twice or of different runs.
pub fn collect(dirs: &[PathBuf]) -> Result<Vec<Vec<Part>>, String> {
    let mut all: Vec<Vec<Part>> = Vec::new();
    for dir in dirs {
        let before: usize = all.iter().map(Vec::len).sum();
        for part in
            entries(dir)?.iter().map(|name| entries(name)).collect::<Result<Vec<_>, _>>()?.concat()
        {
            let part = Part::read(&part)?;
            match all.iter_mut().find(|parts| parts[0].plan.name == part.plan.name) {
                Some(parts) => parts.push(part),
                None => all.push(vec![part]),
            }
        }
        if all.iter().map(Vec::len).sum::<usize>() == before {
            return Err(format!("{} has no shard", dir.display()));
        }
    }
    for parts in &mut all {
        complete(parts)?;
    }
    all.sort_by_key(|parts| parts[0].plan.place);
    Ok(all)
}

/// Folders in a folder.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: io::Error| format!("{}: {e}", dir.display());
    let entries = fs::read_dir(dir).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    let mut paths: Vec<PathBuf> = entries.map_err(failed)?.iter().map(fs::DirEntry::path).collect();
    paths.retain(|path| path.is_dir());
    paths.sort();
    Ok(paths)
}

/// Sorts the shards of an experiment; each must be there once.
fn complete(parts: &mut [Part]) -> Result<(), String> {
    let first = parts[0].clone();
    for part in &*parts {
        let (dir, plan) = (part.dir.display(), &part.plan);
        let differs = first.plan.differs(plan).or_else(|| {
            (plan.shard.of != first.plan.shard.of)
                .then(|| format!("shard {} and shard {}", first.plan.shard, plan.shard))
        });
        if let Some(what) = differs {
            return Err(format!("{} and {dir} are of different runs: {what}", first.dir.display()));
        }
    }
    parts.sort_by_key(|part| part.plan.shard);
    if let Some(two) = parts.windows(2).find(|two| two[0].plan.shard == two[1].plan.shard) {
        let [a, b] = [&two[0], &two[1]].map(|part| part.dir.display());
        return Err(format!("shard {} is there twice: {a} and {b}", two[0].plan.shard));
    }
    let (name, of) = (&first.plan.name, first.plan.shard.of);
    let is_there = |number| parts.iter().any(|part| part.plan.shard.number == number);
    let missing = (1..=of).filter(|number| !is_there(*number));
    let missing: Vec<String> = missing.map(|number| format!("{number}/{of}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("{name}: missing shards {}", missing.join(", ")))
}
