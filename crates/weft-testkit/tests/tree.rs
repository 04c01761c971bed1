//! What must hold for the source tree as a whole: nothing of one person's machine in it, `unsafe`
//! only where it is allowed, and dependencies only of the licences and sources in `deny.toml`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weft_testkit::run;

/// Above this many lines a source file is named as too long; it fails nothing.
const LINES_MAX: usize = 700;

/// The crates that may hold `unsafe` code.
const UNSAFE_CRATES: [&str; 2] = ["weft-gf", "weft-rt"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace's root exists")
}

/// The files that git tracks or would add; without git (a source archive), nothing.
fn tracked_files() -> Vec<PathBuf> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let Ok(listing) = listing else { return Vec::new() };
    let names = String::from_utf8(listing.stdout).expect("file names are UTF-8");
    let files = names.split_terminator('\0').map(|name| root().join(name));
    files.filter(|file| file.is_file()).collect()
}

#[test]
fn no_file_speaks_of_one_machine() {
    // Written in two parts each, so that this file does not find itself.
    let foreign =
        [["/wo", "rk/"], ["/ho", "me/"], ["/ro", "ot/"], ["/Us", "ers/"]].map(|p| p.concat());
    for file in tracked_files() {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            // A path, not the middle of an address or of a relative path.
            let starts = |at: usize| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-}".contains(c))
            };
            for path in &foreign {
                let found = line.match_indices(path.as_str()).any(|(at, _)| starts(at));
                assert!(!found, "{}:{number} names {path}: {line}", file.display());
            }
        }
    }
}

#[test]
fn no_tracked_file_is_binary_or_huge() {
    for file in tracked_files() {
        let bytes = fs::read(&file).expect("read a tracked file");
        assert!(bytes.len() < 1 << 20, "{} has {} bytes", file.display(), bytes.len());
        assert!(!bytes.contains(&0), "{} is binary", file.display());
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        if lines > LINES_MAX && file.extension().is_some_and(|end| end == "rs") {
            eprintln!("note: {} has {lines} lines; more than one thought?", file.display());
        }
    }
}

#[test]
fn unsafe_code_lives_in_two_crates() {
    for entry in fs::read_dir(root().join("crates")).expect("read crates/") {
        let dir = entry.expect("read crates/").path();
        let name =
            dir.file_name().and_then(|name| name.to_str()).expect("an ASCII name").to_owned();
        for start in ["src/lib.rs", "src/main.rs"] {
            let Ok(text) = fs::read_to_string(dir.join(start)) else { continue };
            let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
            let allowed = UNSAFE_CRATES.contains(&name.as_str());
            assert!(forbids || allowed, "{name}/{start} does not forbid unsafe code");
        }
    }
}

/// Cargo builds each file of a crate's `tests` by itself; where it is told not to (`autotests`), a
/// file that nothing names is built by nobody, and never fails.
#[test]
fn every_file_of_tests_is_built() {
    let (mut told, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(root().join("crates")).expect("read crates/") {
        let dir = entry.expect("read crates/").path();
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("read a Cargo.toml");
        if !manifest.lines().any(|line| line == "autotests = false") {
            continue;
        }
        told += 1;
        let main = fs::read_to_string(dir.join("tests/main.rs")).expect("read tests/main.rs");
        for entry in fs::read_dir(dir.join("tests")).expect("read tests/") {
            let file = entry.expect("read tests/").path();
            if file.is_dir() && !["mod.rs", "main.rs"].iter().any(|of| file.join(of).exists()) {
                // Data, or parts of the module beside it.
                continue;
            }
            let name = file.file_stem().and_then(|name| name.to_str()).expect("an ASCII name");
            let is_module = main.lines().any(|line| line == format!("mod {name};"));
            let is_program = name == "main"
                || manifest.contains(&format!("\"tests/{name}.rs\""))
                || manifest.contains(&format!("\"tests/{name}/main.rs\""));
            if !is_module && !is_program {
                missing.push(file);
            }
        }
    }
    assert!(told >= 2, "no crate was looked at");
    assert!(missing.is_empty(), "not named in their crate's tests/main.rs: {missing:?}");
}

#[test]
fn dependencies_are_of_allowed_licences_and_sources() {
    let deny = fs::read_to_string(root().join("deny.toml")).expect("read deny.toml");
    let licences = strings_of(&deny, "allow = [");
    let banned = strings_of(&deny, "deny = [");
    assert!(
        licences.contains(&"MIT") && banned.contains(&"openssl-sys"),
        "deny.toml is read wrong"
    );

    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = run(Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        // Only what this machine has built is sure to be downloaded.
        .arg(format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(root()));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    for package in packages {
        let text = |field: &str| package[field].as_str();
        let name = text("name").expect("a package has a name");
        let licence = text("license").unwrap_or_else(|| panic!("{name} states no licence"));
        assert!(satisfied(licence, &licences), "{name} is under {licence}");
        assert!(!banned.contains(&name), "{name} is banned by deny.toml");
        // A path within the workspace has no source.
        let source = text("source").unwrap_or("registry+");
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
    }
}

/// The strings of the list in `toml` that opens with the line `opening`.
fn strings_of<'a>(toml: &'a str, opening: &str) -> Vec<&'a str> {
    let list = toml.lines().skip_while(|line| *line != opening).skip(1);
    list.take_while(|line| *line != "]").filter_map(|line| line.split('"').nth(1)).collect()
}

/// Whether an SPDX expression can be met with the `allowed` licences. `AND` binds tighter than
/// `OR`; old manifests write `OR` as a slash.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed);
    assert!(rest.is_empty(), "not understood: {expression}");
    met
}

fn any_of<'a, 'w>(words: &'a [&'w str], allowed: &[&str]) -> (bool, &'a [&'w str]) {
    let (mut met, mut rest) = all_of(words, allowed);
    while let ["OR", tail @ ..] = rest {
        let (other, after) = all_of(tail, allowed);
        (met, rest) = (met || other, after);
    }
    (met, rest)
}

fn all_of<'a, 'w>(words: &'a [&'w str], allowed: &[&str]) -> (bool, &'a [&'w str]) {
    let (mut met, mut rest) = one(words, allowed);
    while let ["AND", tail @ ..] = rest {
        let (other, after) = one(tail, allowed);
        (met, rest) = (met && other, after);
    }
    (met, rest)
}

fn one<'a, 'w>(words: &'a [&'w str], allowed: &[&str]) -> (bool, &'a [&'w str]) {
    match words {
        ["(", inner @ ..] => {
            let (met, rest) = any_of(inner, allowed);
            (met, rest.strip_prefix(&[")"]).expect("a closing bracket"))
        }
        [licence, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{licence} WITH {exception}").as_str()), rest)
        }
        [licence, rest @ ..] => (allowed.contains(licence), rest),
        [] => panic!("an expression ends early"),
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"];
    for met in
        ["MIT", "MIT/GPL-3.0", "GPL-3.0 OR MIT AND Zlib", "(GPL-2.0 OR MIT) AND Zlib", allowed[2]]
    {
        assert!(satisfied(met, &allowed), "{met}");
    }
    for unmet in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-2.0", "Apache-2.0"] {
        assert!(!satisfied(unmet, &allowed), "{unmet}");
    }
}

/// The text of a document without what stands in its blocks of code.
fn prose(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("read a document");
    text.split("```").step_by(2).collect()
}

/// What a document links to, as `](…)` has it.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchor that a heading gets: its words in lower case, joined by hyphens.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let is_document = |file: &PathBuf| file.extension().is_some_and(|end| end == "md");
    let (mut seen, mut broken) = (0, Vec::new());
    for file in tracked_files().into_iter().filter(is_document) {
        for link in links(&prose(&file)) {
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            seen += 1;
            let (path, section) = link.split_once('#').unwrap_or((&link, ""));
            let beside = file.parent().expect("a file is in a folder").join(path);
            let target = if path.is_empty() { file.clone() } else { beside };
            let has_section = || {
                let text = prose(&target);
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                headings.any(|heading| anchor(heading) == section)
            };
            if !target.exists() || !(section.is_empty() || has_section()) {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(seen > 50, "only {seen} links were found");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_decision_is_numbered_and_linked() {
    let docs = root().join("docs");
    let overview = prose(&docs.join("architecture.md"));
    let mut names: Vec<String> = fs::read_dir(docs.join("decisions"))
        .expect("read docs/decisions")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("an ASCII name"))
        .collect();
    names.sort_unstable();
    for (number, name) in (1..).zip(&names) {
        assert!(name.starts_with(&format!("{number:04}-")), "{name} is not number {number}");
        assert!(overview.contains(&format!("(decisions/{name})")), "{name} is not linked");
        let text = prose(&docs.join("decisions").join(name));
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, ["## Context", "## Decision", "## Consequences"], "{name}");
    }
}

/// The first sentence of a file's head, on one line, with links as their texts.
fn idea(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let head = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph = head.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |at| at + 1);
    let mut sentence = paragraph[..end].to_owned();
    while let Some(start) = sentence.find("[`") {
        let end = start + sentence[start..].find("`]").expect("a link ends") + 2;
        let target = match sentence[end..].starts_with('(') {
            true => end + sentence[end..].find(')').expect("a target ends") + 1,
            false => end,
        };
        let name = sentence[start + 1..end - 1].to_owned();
        sentence.replace_range(start..target, &name);
    }
    sentence
}

/// All folders below `folder`.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("read a source folder");
    let paths = entries.map(|entry| entry.expect("read a source folder").path());
    let dirs = paths.filter(|path| path.is_dir());
    // git keeps no empty folders, but leaves them behind.
    let dirs =
        dirs.filter(|dir| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()));
    dirs.flat_map(|dir| [folders(&dir), vec![dir]].concat()).collect()
}

#[test]
fn the_architecture_page_shows_every_room() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("read the page");
    let (_, section) = page.split_once("\n## Rooms\n").expect("the page has the section");
    let section = section.split("\n## ").next().expect("a section");
    let shown: BTreeSet<&str> = section.lines().filter(|line| line.starts_with("| weft")).collect();
    let mut rooms = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates")).expect("read crates/") {
        let dir = entry.expect("read crates/").path();
        let name = dir.file_name().and_then(|name| name.to_str()).expect("ASCII");
        for folder in folders(&dir.join("src")) {
            let room = folder.strip_prefix(dir.join("src")).expect("a folder of this crate");
            let idea = idea(&folder.with_extension("rs"));
            rooms.insert(format!("| {name} | `{}` | {idea} |", room.display()));
        }
    }
    assert!(rooms.len() > 50, "only {} rooms were seen", rooms.len());
    let shown: BTreeSet<String> = shown.into_iter().map(str::to_owned).collect();
    let missing: Vec<_> = rooms.difference(&shown).collect();
    let outdated: Vec<_> = shown.difference(&rooms).collect();
    assert!(missing.is_empty() && outdated.is_empty(), "add {missing:#?}\nremove {outdated:#?}");
}

#[test]
fn modules_have_one_style() {
    let odd: Vec<_> = tracked_files()
        .into_iter()
        .filter(|file| file.ends_with("mod.rs") && !file.iter().any(|part| part == "tests"))
        .filter(|file| file.iter().any(|part| part == "src"))
        .collect();
    assert!(odd.is_empty(), "name these foo.rs beside foo/, not foo/mod.rs: {odd:#?}");
}

/// Columns at which comments end; rustfmt does not wrap them.
const COLUMNS: usize = 100;

#[test]
fn comments_end_at_100_columns() {
    let mut long = Vec::new();
    for file in tracked_files() {
        if file.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("read a source file");
        let mut is_drawing = false;
        for (number, line) in (1..).zip(text.lines()) {
            let comment = line.trim_start().strip_prefix("//");
            let Some(comment) = comment.map(|text| text.trim_start_matches(['/', '!']).trim())
            else {
                is_drawing = false;
                continue;
            };
            is_drawing ^= comment.starts_with("```");
            // Tables and addresses cannot be wrapped.
            let whole = is_drawing || comment.starts_with('|') || comment.contains("://");
            if line.chars().count() > COLUMNS && !whole {
                long.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "comments longer than {COLUMNS} columns: {long:#?}");
}

/// The structs that hold the state of an array and of a file system, each with its crate: all of
/// their fields are private, and methods say what happens to them.
const STATE_STRUCTS: [(&str, &str); 10] = [
    ("weft-array", "Engine"),
    ("weft-array", "Jobs"),
    ("weft-array", "Members"),
    ("weft-array", "RebuildState"),
    ("weft-array", "ScrubState"),
    ("weft-array", "Service"),
    ("weft-array", "SpaceWaits"),
    ("weft-fs", "FsState"),
    ("weft-fs", "Promised"),
    ("weft-fs", "Unwritten"),
];

/// The structs of a file, each with its fields' declarations.
fn structs(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("struct ") {
        let declared = &text[at + "struct ".len()..];
        let name = declared.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        let line = declared.lines().next().unwrap_or_default();
        let fields = match declared.split_once("{\n").filter(|_| line.ends_with('{')) {
            Some((_, body)) => body.split("\n}").next().unwrap_or(body),
            None => line.split_once('(').map_or("", |(_, fields)| fields),
        };
        let fields = fields.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        found.push((name.unwrap_or_default(), fields.collect()));
    }
    found
}

#[test]
fn state_is_private_to_its_module() {
    let crates: BTreeSet<&str> = STATE_STRUCTS.iter().map(|(name, _)| *name).collect();
    let mut seen: BTreeSet<&(&str, &str)> = BTreeSet::new();
    let mut visible = Vec::new();
    for name in crates {
        let src = root().join("crates").join(name).join("src");
        for file in tracked_files().into_iter().filter(|file| file.starts_with(&src)) {
            let text = fs::read_to_string(&file).expect("read a source file");
            for (of, fields) in structs(&text) {
                let state = STATE_STRUCTS.iter().find(|state| **state == (name, of));
                seen.extend(state);
                for field in fields.into_iter().filter(|field| field.starts_with("pub")) {
                    let cells = ["Cell<", "Notify"];
                    // What a node of a file holds is still for all rooms of weft-fs.
                    let is_cell = name == "weft-array"
                        && cells.iter().any(|cell| {
                            field.split_once(": ").is_some_and(|(_, of)| of.contains(cell))
                        });
                    if state.is_some() || is_cell {
                        visible.push(format!("{}: {of} has {field}", file.display()));
                    }
                }
            }
        }
    }
    let without_git = tracked_files().is_empty();
    assert!(without_git || seen.len() == STATE_STRUCTS.len(), "only {seen:?} were found");
    assert!(visible.is_empty(), "give these methods, and make the fields private: {visible:#?}");
}

#[test]
fn fields_of_structs_are_seen() {
    let text = "struct A {\n    /// A field.\n    pub a: Cell<u8>,\n}\npub struct B(pub u8);\n";
    let seen = structs(text);
    assert_eq!(seen, [("A", vec!["pub a: Cell<u8>,"]), ("B", vec!["pub u8);"])]);
}
