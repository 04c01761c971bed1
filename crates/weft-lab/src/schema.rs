//! Checks a TOML file against a JSON schema, so that an error names the line and the key.
//!
//! The schema is the one that editors use, and the only place where limits stand. Of JSON Schema
//! this knows what the lab's schemas need: `type`, `properties`, `required`,
//! `additionalProperties`, `items`, `minItems`, `minimum`, `maximum`, `exclusiveMinimum`,
//! `multipleOf`, `minLength`, `enum`, `const`, `oneOf` and `$ref`. Three things are the lab's own,
//! which editors ignore: a `format` names a kind of word (`Rules::word`), `x-check` a rule for a
//! whole table (`Rules::table`), and `x-name-in` the list in which a name must be.

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What a file must comply with beyond its schema.
pub(crate) trait Rules {
    /// Checks a word by its `format`.
    fn word(&self, format: &str, word: &str) -> Result<(), String>;

    /// Checks a table by its `x-check`. An error names the key.
    fn table(&self, check: &str, table: &DeTable<'_>) -> Result<(), (&'static str, String)>;
}

/// What is wrong in a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {}{cause}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
pub struct Wrong {
    /// Line, from 1 on.
    pub line: usize,
    /// The key's path; elements of lists count from 0. Empty: the file itself.
    pub key: String,
    /// What is wrong.
    pub cause: String,
}

/// Checks a file, and returns the first error in it.
pub(crate) fn check(schema: &str, text: &str, rules: &dyn Rules) -> Result<(), Wrong> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let document = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        Wrong { line: line(at), key: String::new(), cause: e.message().to_owned() }
    })?;
    let schema: Value = serde_json::from_str(schema).expect("a sound schema");
    let mut check =
        Check { schema: &schema, document: document.get_ref(), rules, found: Vec::new() };
    check.table(&schema, document.get_ref(), document.span().start, "");
    // A misspelt key is more useful to report than the missing one.
    let order = |(at, _, cause): &(usize, String, String)| (cause == MISSING, *at);
    let first = check.found.into_iter().min_by_key(order);
    first.map_or(Ok(()), |(at, key, cause)| Err(Wrong { line: line(at), key, cause }))
}

/// The text under a key of a table.
pub(crate) fn text<'a>(table: &'a DeTable<'_>, key: &str) -> Option<&'a str> {
    table.get(key)?.get_ref().as_str()
}

/// The whole number under a key of a table.
pub(crate) fn integer(table: &DeTable<'_>, key: &str) -> Option<i128> {
    whole(table.get(key)?.get_ref())
}

/// The number under a key of a table.
pub(crate) fn number(table: &DeTable<'_>, key: &str) -> Option<f64> {
    real(table.get(key)?.get_ref())
}

fn whole(value: &DeValue<'_>) -> Option<i128> {
    let number = value.as_integer()?;
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

#[expect(clippy::cast_precision_loss, reason = "a number that was given as one")]
fn real(value: &DeValue<'_>) -> Option<f64> {
    whole(value).map(|n| n as f64).or_else(|| value.as_float()?.as_str().parse().ok())
}

const MISSING: &str = "is missing";

struct Check<'a> {
    schema: &'a Value,
    document: &'a DeTable<'a>,
    rules: &'a dyn Rules,
    /// Errors with their offset in the file and their key.
    found: Vec<(usize, String, String)>,
}

impl<'a> Check<'a> {
    fn wrong(&mut self, at: usize, key: &str, cause: impl Into<String>) {
        self.found.push((at, key.to_owned(), cause.into()));
    }

    fn value(&mut self, schema: &'a Value, value: &Spanned<DeValue<'_>>, key: &str) {
        let (at, value) = (value.span().start, value.get_ref());
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
            return self.inner(&self.schema["$defs"][name], value, at, key);
        }
        self.inner(schema, value, at, key);
    }

    fn inner(&mut self, schema: &'a Value, value: &DeValue<'_>, at: usize, key: &str) {
        if let Some(branches) = schema["oneOf"].as_array() {
            match choose(branches, value) {
                Ok(branch) => self.inner(branch, value, at, key),
                Err(cause) => {
                    let kind = value.as_table().and_then(|table| table.get("kind"));
                    let key = if kind.is_some() { join(key, "kind") } else { key.to_owned() };
                    self.wrong(kind.map_or(at, |kind| kind.span().start), &key, cause);
                }
            }
            return;
        }
        if let Some(words) = schema["enum"].as_array() {
            let is_it = |word: &Value| match word {
                Value::String(word) => value.as_str() == Some(word),
                word => word.as_i64().map(i128::from) == whole(value),
            };
            if !words.iter().any(is_it) {
                let cause = format!("{} is none of {}", shown(value), listed(words.iter()));
                self.wrong(at, key, cause);
            }
            return;
        }
        match (schema["type"].as_str(), value) {
            (None, _) | (Some("boolean"), DeValue::Boolean(_)) => {}
            (Some("object"), DeValue::Table(table)) => self.table(schema, table, at, key),
            (Some("array"), DeValue::Array(list)) => {
                if (list.len() as u64) < schema["minItems"].as_u64().unwrap_or(0) {
                    self.wrong(at, key, "the list is empty");
                }
                let mut names: Vec<&str> = Vec::new();
                for (number, item) in list.iter().enumerate() {
                    let key = format!("{key}[{number}]");
                    self.value(&schema["items"], item, &key);
                    let name = item.get_ref().as_table().and_then(|table| text(table, "name"));
                    if let Some(name) = name.filter(|name| names.contains(name)) {
                        let cause = format!("the name {name:?} is given twice");
                        self.wrong(item.span().start, &join(&key, "name"), cause);
                    }
                    names.extend(name);
                }
            }
            (Some("string"), DeValue::String(word)) => self.word(schema, word, at, key),
            (Some("integer"), DeValue::Integer(_))
            | (Some("number"), DeValue::Integer(_) | DeValue::Float(_)) => {
                if let Err(cause) = in_bounds(schema, value) {
                    self.wrong(at, key, cause);
                }
            }
            (Some(wanted), _) => {
                let wanted = match wanted {
                    "object" => "a table",
                    "array" => "a list",
                    "string" => "text",
                    "integer" => "a whole number",
                    "boolean" => "true or false",
                    _ => "a number",
                };
                self.wrong(at, key, format!("{} is not {wanted}", shown(value)));
            }
        }
    }

    fn word(&mut self, schema: &Value, word: &str, at: usize, key: &str) {
        if word.is_empty() {
            return self.wrong(at, key, "the text is empty");
        }
        if let Some(Err(cause)) = schema["format"].as_str().map(|f| self.rules.word(f, word)) {
            self.wrong(at, key, cause);
        }
        let Some(list) = schema["x-name-in"].as_str() else { return };
        let run = self.document.get("run").and_then(|run| run.get_ref().as_table());
        let list = run.and_then(|run| run.get(list)?.get_ref().as_array()).into_iter().flatten();
        let names: Vec<&str> =
            list.filter_map(|item| text(item.get_ref().as_table()?, "name")).collect();
        if !names.contains(&word) {
            let cause = format!("no entry is named {word:?}; there are {}", names.join(", "));
            self.wrong(at, key, cause);
        }
    }

    fn table(&mut self, schema: &'a Value, table: &DeTable<'_>, at: usize, key: &str) {
        for (name, value) in table {
            let path = join(key, name.get_ref());
            let property = &schema["properties"][name.get_ref().as_ref()];
            match (property.is_null(), &schema["additionalProperties"]) {
                (false, _) => self.value(property, value, &path),
                (true, more @ Value::Object(_)) => self.value(more, value, &path),
                _ => {
                    let known = schema["properties"].as_object().into_iter().flatten();
                    let known: Vec<&str> = known.map(|(name, _)| &**name).collect();
                    let cause = format!("no such key; there are {}", known.join(", "));
                    self.wrong(name.span().start, &path, cause);
                }
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !table.contains_key(name) {
                self.wrong(at, &join(key, name), MISSING);
            }
        }
        // A rule may rely on the schema.
        if let (true, Some(check)) = (self.found.is_empty(), schema["x-check"].as_str())
            && let Err((name, cause)) = self.rules.table(check, table)
        {
            let at = table.get(name).map_or(at, |value| value.span().start);
            self.wrong(at, &join(key, name), cause);
        }
    }
}

/// The alternative that a value means.
fn choose<'a>(branches: &'a [Value], value: &DeValue<'_>) -> Result<&'a Value, String> {
    let Some(table) = value.as_table() else {
        let words = branches.iter().find(|branch| branch["enum"].is_array());
        return words.ok_or_else(|| format!("{} is not a table", shown(value)));
    };
    let kinds = || branches.iter().map(|branch| &branch["properties"]["kind"]["const"]);
    if kinds().any(Value::is_string) {
        let kind =
            table.get("kind").ok_or_else(|| format!("kind is missing: {}", listed(kinds())))?;
        let number = kinds().position(|known| known.as_str() == kind.get_ref().as_str());
        return number
            .map(|number| &branches[number])
            .ok_or_else(|| format!("{} is none of {}", shown(kind.get_ref()), listed(kinds())));
    }
    let knows = |branch: &&Value| {
        table.keys().any(|key| branch["properties"].get(key.get_ref().as_ref()).is_some())
    };
    branches.iter().find(knows).ok_or_else(|| "none of the alternatives".into())
}

fn in_bounds(schema: &Value, value: &DeValue<'_>) -> Result<(), String> {
    let number = real(value).filter(|number| number.is_finite());
    let number = number.ok_or_else(|| format!("{} is not a number", shown(value)))?;
    let bound = |name: &str| schema[name].as_f64();
    if let Some(least) = bound("minimum").filter(|least| number < *least) {
        return Err(format!("{} is less than {least}", shown(value)));
    }
    if let Some(most) = bound("maximum").filter(|most| number > *most) {
        return Err(format!("{} is more than {most}", shown(value)));
    }
    if let Some(least) = bound("exclusiveMinimum").filter(|least| number <= *least) {
        return Err(format!("{} is not more than {least}", shown(value)));
    }
    match bound("multipleOf").filter(|step| number % step != 0.0) {
        Some(step) => Err(format!("{} is no multiple of {step}", shown(value))),
        None => Ok(()),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn listed<'a>(words: impl Iterator<Item = &'a Value>) -> String {
    let word = |word: &Value| word.as_str().map_or_else(|| word.to_string(), str::to_owned);
    words.map(word).collect::<Vec<_>>().join(", ")
}

/// A value as an error names it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}
