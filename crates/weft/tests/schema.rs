//! docs/json.md as a schema: its tables, and whether an answer is as they say.
//!
//! A heading names a table, a row a key by its path. The type column gives its type; a link in it
//! leads to the table of a part that several answers share.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    kind: Kind,
    /// The words that it may be.
    pub words: BTreeSet<String>,
    nullable: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
    Word,
    Object,
    List,
    ListOf(Box<Kind>),
    Table(String),
}

/// The whole document.
#[derive(Debug, Default)]
pub struct Schema {
    tables: BTreeMap<String, BTreeMap<String, Row>>,
    /// What was met: table and path.
    seen: RefCell<BTreeSet<(String, String)>>,
}

impl Schema {
    pub fn read(document: &str) -> Self {
        let mut schema = Self::default();
        let mut table = String::new();
        for line in document.lines() {
            if let Some(heading) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
                table = heading.replace('`', "");
                continue;
            }
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            if !line.starts_with("| `") {
                continue;
            }
            let [key, kind, ..] = cells.as_slice() else { panic!("not a row: {line}") };
            let key = key.trim_matches('`').to_owned();
            let rows = schema.tables.entry(table.clone()).or_default();
            assert!(rows.insert(key, row(kind)).is_none(), "{table}: twice: {line}");
        }
        schema
    }

    pub fn row(&self, table: &str, path: &str) -> &Row {
        let rows = self.tables.get(table).unwrap_or_else(|| panic!("no table {table}"));
        rows.get(path).unwrap_or_else(|| panic!("{table} has no `{path}`"))
    }

    /// Checks an object against a table.
    #[track_caller]
    pub fn check(&self, table: &str, object: &Value) {
        let wrong = self.wrong_in(table, "", object);
        assert!(wrong.is_empty(), "docs/json.md, {table}: {}\n{object:#}", wrong.join("\n"));
    }

    fn wrong_in(&self, table: &str, path: &str, value: &Value) -> Vec<String> {
        let Some(object) = value.as_object() else { return vec![format!("{path} is no object")] };
        let mut wrong = Vec::new();
        for (key, value) in object {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if path == "weft_json" {
                continue;
            }
            let rows = self.tables.get(table).unwrap_or_else(|| panic!("no table {table}"));
            match rows.get(&path) {
                Some(row) => {
                    self.seen.borrow_mut().insert((table.to_owned(), path.clone()));
                    wrong.extend(self.wrong_value(table, &path, row, &row.kind, value));
                }
                None => wrong.push(format!("`{path}` is not described")),
            }
        }
        wrong
    }

    fn wrong_value(
        &self,
        table: &str,
        path: &str,
        row: &Row,
        kind: &Kind,
        value: &Value,
    ) -> Vec<String> {
        if value.is_null() && row.nullable {
            return Vec::new();
        }
        let items = || value.as_array().into_iter().flatten();
        let fits = match kind {
            Kind::Text => value.is_string(),
            Kind::Integer => value.is_u64(),
            Kind::Number => value.is_number(),
            Kind::Boolean => value.is_boolean(),
            Kind::Word => value.as_str().is_some_and(|word| row.words.contains(word)),
            Kind::Table(name) => return self.wrong_in(name, "", value),
            Kind::Object => return self.wrong_in(table, path, value),
            Kind::List if value.is_array() => {
                let path = format!("{path}[]");
                return items().flat_map(|item| self.wrong_in(table, &path, item)).collect();
            }
            Kind::ListOf(kind) if value.is_array() => {
                let item = |item| self.wrong_value(table, path, row, kind, item);
                return items().flat_map(item).collect();
            }
            Kind::List | Kind::ListOf(_) => false,
        };
        if fits { Vec::new() } else { vec![format!("`{path}` is {value}, not {kind:?}")] }
    }

    /// The rows that nothing was checked against.
    pub fn unseen(&self) -> BTreeSet<String> {
        let seen = self.seen.borrow();
        let rows = self.tables.iter().flat_map(|(t, rows)| rows.keys().map(move |k| (t, k)));
        let unseen = rows.filter(|(t, k)| !seen.contains(&((*t).clone(), (*k).clone())));
        unseen.map(|(table, key)| format!("{table}: {key}")).collect()
    }

    /// Every key, to look at how they are named.
    pub fn keys(&self) -> impl Iterator<Item = (&String, &String)> {
        self.tables.iter().flat_map(|(table, rows)| rows.keys().map(move |key| (table, key)))
    }
}

fn row(text: &str) -> Row {
    let nullable = text.contains(" or null");
    let text = text.replace(" or null", "").replace(", optional", "");
    let (kind, words) = text.split_once(": ").unwrap_or((&text, ""));
    let words = words.split(", ").filter(|word| !word.is_empty());
    let words: BTreeSet<String> = words.map(|word| word.trim_matches('`').to_owned()).collect();
    let kind = kind_of(kind);
    assert_eq!(kind == Kind::Word, !words.is_empty(), "words are listed of a word: {text}");
    Row { kind, words, nullable }
}

fn kind_of(text: &str) -> Kind {
    if let Some(item) = text.strip_prefix("list of ") {
        return Kind::ListOf(Box::new(kind_of(item)));
    }
    if let Some((name, _)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return Kind::Table(name.replace('`', ""));
    }
    match text {
        "text" => Kind::Text,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        "word" => Kind::Word,
        "object" => Kind::Object,
        "list" => Kind::List,
        _ => panic!("no type: {text}"),
    }
}
