//! Modules know only those below them: the modules of a folder do not use one another in a circle.
//!
//! The sources are read as text: each path that begins with `crate` or `super` is an edge from its
//! file's module to the module that it leads to, through re-exports. An edge counts for the two
//! siblings at which both paths part. What a module and its own submodules share is their own
//! affair. Tests inside a file may use whatever they want.
//!
//! Calls count, too: where a method of a type calls another method of the same type, through `self`
//! or through the `Rc` that the type wraps, the module of the one uses that of the other. So does
//! a call of a method on what such a call returns, by its declared type: `self.members().slots()`
//! uses the module that has `Members::slots`. A struct whose methods stand in many files would hide
//! its circles otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module's path from its crate's root, which is empty.
type Module = Vec<String>;

/// What a crate's modules use.
#[derive(Default)]
struct Crate {
    modules: BTreeSet<Module>,
    /// Names that a module hands on, and where they come from.
    exports: BTreeMap<(Module, String), Module>,
    uses: Vec<(Module, Module)>,
}

impl Crate {
    fn read(src: &Path) -> Self {
        let file = |file: PathBuf| {
            let text = fs::read_to_string(&file).expect("a source file can be read");
            (module_of(src, &file), code_of(&text))
        };
        Self::of(&sources(src).into_iter().map(file).collect::<Vec<_>>())
    }

    /// The crate whose modules have this code.
    fn of(files: &[(Module, String)]) -> Self {
        let mut all = Self::default();
        all.modules.extend(files.iter().map(|(module, _)| module.clone()));
        for (module, code) in files {
            for Use { path, name, public } in uses(module, code) {
                if public {
                    all.exports.insert((module.clone(), name), path.clone());
                }
                all.uses.push((module.clone(), path));
            }
        }
        all.uses.extend(calls(files));
        all
    }

    /// The module that a path leads to.
    fn target(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        // Re-exports of re-exports, and no more of them than there are names.
        for _ in 0..8 {
            let handed_on = (0..path.len()).find_map(|at| {
                let from = self.exports.get(&(path[..at].to_vec(), path[at].clone()))?;
                (from[..] != path[..=at]).then(|| [from, &path[at + 1..]].concat())
            });
            match handed_on {
                Some(further) => path = further,
                None => break,
            }
        }
        while !path.is_empty() && !self.modules.contains(&path) {
            path.pop();
        }
        path
    }

    /// Which sibling uses which.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (user, path) in &self.uses {
            let used = self.target(path);
            let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if shared < user.len() && shared < used.len() {
                let from = user[..=shared].to_vec();
                edges.entry(from).or_default().insert(used[..=shared].to_vec());
            }
        }
        edges
    }

    /// The sets of siblings that use one another, as sorted names.
    fn circles(&self) -> BTreeSet<Vec<String>> {
        let edges = self.edges();
        let below = |from: &Module| {
            let mut seen = BTreeSet::new();
            let mut next = vec![from.clone()];
            while let Some(module) = next.pop() {
                for used in edges.get(&module).into_iter().flatten() {
                    if seen.insert(used.clone()) {
                        next.push(used.clone());
                    }
                }
            }
            seen
        };
        let below: BTreeMap<&Module, BTreeSet<Module>> =
            edges.keys().map(|module| (module, below(module))).collect();
        let in_circle = |module: &&Module| below[*module].contains(*module);
        let circle_of = |module: &Module| {
            let both =
                |other: &&Module| below.get(*other).is_some_and(|uses| uses.contains(module));
            below[module].iter().filter(both).map(|module| module.join("::")).collect()
        };
        edges.keys().filter(in_circle).map(circle_of).collect()
    }
}

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a source folder can be read") {
        let path = entry.expect("a source folder can be read").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

fn module_of(src: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(src).expect("it lies in there").with_extension("");
    let mut module: Module =
        path.iter().map(|name| name.to_str().expect("an ASCII name").to_owned()).collect();
    if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        module.pop();
    }
    module
}

/// A file without its comments and without its tests.
fn code_of(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

struct Use {
    path: Module,
    /// The name that it brings.
    name: String,
    public: bool,
}

/// All paths in `code` that begin with `crate` or `super`, and re-exports of submodules.
fn uses(module: &Module, code: &str) -> Vec<Use> {
    let mut found = Vec::new();
    for (at, root) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = &code[..at];
        // The rest of a longer word, of `pub(crate)`, or of `super::super::`.
        if before.ends_with(|c: char| c.is_alphanumeric() || "_$".contains(c))
            || before.ends_with("super::")
        {
            continue;
        }
        let (mut base, mut rest) = match root {
            "crate::" => (Module::new(), &code[at + root.len()..]),
            _ => (parent(module), &code[at + root.len()..]),
        };
        while let Some(further) = rest.strip_prefix("super::") {
            base.pop();
            rest = further;
        }
        let line = before.rsplit('\n').next().unwrap_or_default().trim();
        let public = line.starts_with("pub") && line.ends_with("use");
        tree(&base, rest, public, &mut found);
    }
    for line in code.split(';').map(str::trim) {
        // `pub use submodule::Name`
        let public = line.rsplit('\n').find_map(|line| line.trim().strip_prefix("pub"));
        let Some((_, path)) = line.split_once("use ").filter(|_| public.is_some()) else {
            continue;
        };
        if !["crate::", "super::", "self::"].iter().any(|root| path.starts_with(root)) {
            tree(module, path, true, &mut found);
        }
    }
    found
}

/// An `impl` block that stands at the left edge of a file.
struct Impl<'a> {
    /// The type that has the methods.
    of: String,
    /// Whether they are those of a trait.
    of_trait: bool,
    body: &'a str,
}

fn impls(code: &str) -> Vec<Impl<'_>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("\nimpl") {
        let block = &code[at + 1..];
        let Some((head, body)) = block.split_once("{\n") else { continue };
        let of = head.rsplit(" for ").next().unwrap_or(head);
        let of = of.strip_prefix("impl").unwrap_or(of).trim_start();
        // `<'a, T>` comes before the type's name.
        let of =
            if of.starts_with('<') { of.split_once("> ").map_or("", |(_, of)| of) } else { of };
        let (of, of_trait) = (word(of).to_owned(), head.contains(" for "));
        found.push(Impl { of, of_trait, body: body.split("\n}").next().unwrap_or(body) });
    }
    found
}

/// The name at the start of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The methods of a type that have the same name.
#[derive(Default)]
struct Methods<'a> {
    modules: BTreeSet<&'a Module>,
    /// What the last of them returns.
    returns: &'a str,
}

/// The type that a signature returns, which follows the method's name: without references, and
/// without the smart pointer or `Option` around it.
fn returned(signature: &str) -> &str {
    let head = signature.split(['{', ';']).next().unwrap_or_default();
    let Some((_, mut of)) = head.rsplit_once("-> ") else { return "" };
    loop {
        of = of.trim_start_matches('&').trim_start();
        let wrapper = ["Rc<", "Option<", "Ref<'_, ", "'_ ", "mut "];
        match wrapper.iter().find_map(|wrapper| of.strip_prefix(wrapper)) {
            Some(inner) => of = inner,
            None => return word(of),
        }
    }
}

/// What follows the brackets with which `text` begins.
fn after_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return &text[at + 1..],
            ')' => depth -= 1,
            _ => {}
        }
    }
    ""
}

/// From which module to which methods call one another, if the name is that of one method only. A
/// type's own methods count before those of its traits.
fn calls(files: &[(Module, String)]) -> Vec<(Module, Module)> {
    let mut own: BTreeMap<(String, &str), Methods<'_>> = BTreeMap::new();
    let mut of_traits: BTreeMap<(String, &str), Methods<'_>> = BTreeMap::new();
    let mut wraps: BTreeMap<String, &str> = BTreeMap::new();
    for (module, code) in files {
        for Impl { of, of_trait, body } in impls(code) {
            let methods = if of_trait { &mut of_traits } else { &mut own };
            for (at, name) in body.match_indices("fn ") {
                let method = word(&body[at + name.len()..]);
                let known = methods.entry((of.clone(), method)).or_default();
                known.modules.insert(module);
                known.returns = returned(&body[at + name.len() + method.len()..]);
            }
        }
        for (at, name) in code.match_indices("struct ") {
            let wrapper = word(&code[at + name.len()..]);
            let rest = &code[at + name.len() + wrapper.len()..];
            let line = rest.lines().next().unwrap_or_default();
            if let Some((_, inner)) = line.split_once("Rc<").filter(|_| line.starts_with('(')) {
                wraps.insert(wrapper.to_owned(), word(inner));
            }
        }
    }
    let mut found = Vec::new();
    for (module, code) in files {
        for Impl { of, body, .. } in impls(code) {
            for (at, name) in body.match_indices("self") {
                let rest = body[at + name.len()..].trim_start();
                let (mut of, mut rest) = match rest.strip_prefix(".0") {
                    Some(rest) => (wraps.get(&of).copied().unwrap_or_default(), rest),
                    None => (of.as_str(), rest),
                };
                // As far as the chain of calls can be followed.
                while let Some(call) = rest.trim_start().strip_prefix('.').map(str::trim_start) {
                    let method = word(call);
                    if !call[method.len()..].starts_with('(') {
                        break;
                    }
                    let key = (of.to_owned(), method);
                    let Some(known) = own.get(&key).or_else(|| of_traits.get(&key)) else { break };
                    let (Some(place), 1) = (known.modules.first(), known.modules.len()) else {
                        break;
                    };
                    found.push((module.clone(), (*place).clone()));
                    of = if known.returns == "Self" { of } else { known.returns };
                    rest = after_brackets(&call[method.len()..]);
                }
            }
        }
    }
    found
}

fn parent(module: &Module) -> Module {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// The paths of a `use` tree, or of a single path. Returns what follows it.
fn tree<'a>(base: &Module, text: &'a str, public: bool, found: &mut Vec<Use>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            let before = rest.len();
            rest = tree(base, rest, public, found).trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
            if rest.len() == before {
                return rest;
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if name.is_empty() || name == "self" {
        base.clone()
    } else {
        [&base[..], &[name.to_owned()]].concat()
    };
    if let Some(further) = rest.strip_prefix("::") {
        return tree(&path, further, public, found);
    }
    let (alias, rest) = match rest.trim_start().strip_prefix("as ") {
        Some(after) => {
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
            (Some(after[..end].to_owned()), &after[end..])
        }
        None => (None, rest),
    };
    let name = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    found.push(Use { path, name, public });
    rest
}

#[test]
fn no_circle_of_modules() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    let mut seen = 0;
    for entry in fs::read_dir(&crates).expect("read crates/") {
        let dir = entry.expect("read crates/").path();
        let name = dir.file_name().and_then(|name| name.to_str()).expect("ASCII").to_owned();
        let modules = Crate::read(&dir.join("src"));
        seen += modules.uses.len();
        found.extend(modules.circles().into_iter().map(|circle| (name.clone(), circle)));
    }
    assert!(seen > 1000, "only {seen} uses were seen");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_circle_of_methods_is_found_through_self_and_what_a_type_wraps() {
    let module = |path: &str| -> Module { path.split("::").map(str::to_owned).collect() };
    let files = [
        (module("state"), "pub struct State;\npub struct Face(pub Rc<State>);\n"),
        (module("low"), "\nimpl State {\n    fn low(&self) {\n        self.high();\n    }\n}\n"),
        (module("high"), "\nimpl<T> State {\n    fn high(&self) {}\n}\n"),
        (
            module("face"),
            "\nimpl Face {\n    fn face(&self) {\n        self.0\n            .low();\n    }\n}\n",
        ),
        (module("other"), "\nimpl Other {\n    fn high(&self) {\n        self.face();\n    }\n}\n"),
    ];
    let mut files = files.map(|(module, code)| (module, code.to_owned())).to_vec();
    assert_eq!(Crate::of(&files).circles(), BTreeSet::new());
    files[2].1.push_str("\nimpl State {\n    fn more(&self) {\n        self.low();\n    }\n}\n");
    let circle = vec!["high".to_owned(), "low".to_owned()];
    assert_eq!(Crate::of(&files).circles().into_iter().collect::<Vec<_>>(), [circle]);
}

#[test]
fn a_circle_of_methods_is_found_through_what_they_return() {
    let module = |path: &str| -> Module { path.split("::").map(str::to_owned).collect() };
    let state = "\nimpl State {\n    fn part(&self) -> Option<&Part> {\n        self.at(f(1), 2)\n    }\n}\n";
    let low = "\nimpl State {\n    fn low(&self) {\n        self.part().high();\n    }\n}\n";
    let high = "\nimpl Part {\n    fn high(&self) {}\n}\n";
    let part_of_trait = "\nimpl Host for State {\n    fn part(&self) -> &Part {}\n}\n";
    let mut files = vec![
        (module("state"), state.to_owned()),
        (module("low"), low.to_owned()),
        (module("high"), [high, part_of_trait].concat()),
    ];
    assert_eq!(Crate::of(&files).circles(), BTreeSet::new());
    files[2].1.push_str("\nimpl State {\n    fn up(&self) {\n        self.low();\n    }\n}\n");
    let circle = vec!["high".to_owned(), "low".to_owned()];
    assert_eq!(Crate::of(&files).circles().into_iter().collect::<Vec<_>>(), [circle]);
}

#[test]
fn a_circle_is_found_through_re_exports_and_groups() {
    let module = |path: &str| -> Module { path.split("::").map(str::to_owned).collect() };
    let files = [
        (Module::new(), "pub use below::{Low as Handed, other};\nmod above;\nmod below;"),
        (module("above"), "use crate::{Handed, above::inner::X};\n"),
        (module("above::inner"), "fn f() -> super::Y {}\n"),
        (module("below"), "use std::fmt;\npub(crate) use super::above::{self, inner};\n"),
    ];
    let all = Crate::of(&files.map(|(module, code)| (module, code.to_owned())));
    let circle = vec!["above".to_owned(), "below".to_owned()];
    assert_eq!(all.circles().into_iter().collect::<Vec<_>>(), [circle]);
}
