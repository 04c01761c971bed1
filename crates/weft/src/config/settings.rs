//! The contents of the files of a configuration: keys, each an option of a command.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory as _};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weft_array::superblock::check_name;
use weft_cli::failure::Failure;

use super::read::Wrong;
use crate::cli::Cli;

/// Options that are for one run, and not for a service.
const OF_ONE_RUN: [&str; 8] =
    ["background", "log", "config", "force-degraded", "help", "version", "json", "runtime-dir"];
/// Keys that are lists, with the option that each element stands for; none: an argument.
const LISTS: [(&str, Option<&str>); 2] = [("members", None), ("arrays", Some("array"))];
/// Keys whose values are paths, or addresses of remote disks.
const PATHS: [&str; 3] = ["members", "nbd-socket", "program"];

/// The value of a key, and its place.
#[derive(Debug, Clone)]
struct Setting {
    file: PathBuf,
    line: usize,
    arguments: Vec<OsString>,
}

/// The settings of all files: by table, then by key. A key in a later file replaces that of an
/// earlier one, and lists are joined.
#[derive(Debug, Default)]
pub struct Settings {
    tables: BTreeMap<Vec<String>, BTreeMap<String, Setting>>,
}

impl Settings {
    /// Adds the settings of a file; returns its faults.
    pub fn add(&mut self, file: &Path, text: &str) -> Vec<Wrong> {
        let mut reader = Reader { file, text, wrong: Vec::new() };
        let (table, errors) = DeTable::parse_recoverable(text);
        if let Some(error) = errors.first() {
            let at = error.span().map_or(text.len(), |span| span.start);
            let why = error.message().replace('\n', "; ");
            return vec![Wrong { line: Some(reader.line(at)), ..Wrong::file(file, why) }];
        }
        for (key, value) in table.get_ref() {
            match (&**key.get_ref(), value.get_ref()) {
                ("serve", DeValue::Table(keys)) => {
                    self.add_table(&mut reader, vec!["serve".to_owned()], keys);
                }
                ("attach", DeValue::Table(arrays)) => self.add_arrays(&mut reader, arrays),
                ("serve" | "attach", _) => {
                    reader.refuse(key, "", "it must be a table, such as [serve] or [attach.tank]");
                }
                (name, _) => {
                    let command = Cli::command();
                    let is_option = command.find_subcommand("serve").is_some_and(|serve| {
                        options(serve).any(|option| option.get_long() == Some(name))
                    });
                    let is_list = LISTS.iter().any(|(list, _)| *list == name);
                    let why = match is_option || is_list {
                        true => "it belongs below a line [serve]",
                        false => "unknown table or key; there are [serve] and [attach.ARRAY]",
                    };
                    reader.refuse(key, "", why);
                }
            }
        }
        reader.wrong
    }

    fn add_arrays(&mut self, reader: &mut Reader<'_>, arrays: &DeTable<'_>) {
        for (array, value) in arrays {
            let name = array.get_ref().clone().into_owned();
            if let Err(why) = check_name(&name) {
                reader.refuse(array, "attach.", &format!("the name of an array {why}"));
                continue;
            }
            match value.get_ref() {
                DeValue::Table(keys) => {
                    self.add_table(reader, vec!["attach".to_owned(), name], keys);
                }
                _ => reader.refuse(array, "attach.", "it must be a table, such as [attach.tank]"),
            }
        }
    }

    fn add_table(&mut self, reader: &mut Reader<'_>, table: Vec<String>, keys: &DeTable<'_>) {
        let cli = Cli::command();
        let Some(command) = cli.find_subcommand(&table[0]) else { return };
        let prefix = format!("{}.", table.join("."));
        let settings = self.tables.entry(table).or_default();
        for (key, value) in keys {
            let name: &str = key.get_ref();
            let arguments = arguments_of(command, name, value.get_ref());
            let checked = arguments.and_then(|arguments| {
                check_alone(command, &arguments)?;
                Ok(arguments)
            });
            let line = reader.line(key.span().start);
            match checked {
                Err(why) => reader.refuse(key, &prefix, &why),
                Ok(mut arguments) => {
                    if let Some(before) = settings.get(name).filter(|_| is_list(name)) {
                        arguments.splice(0..0, before.arguments.iter().cloned());
                    }
                    let setting = Setting { file: reader.file.into(), line, arguments };
                    settings.insert(name.to_owned(), setting);
                }
            }
        }
    }

    /// Keys that need other keys which are missing.
    pub fn check(&self) -> Vec<Wrong> {
        let cli = Cli::command();
        let mut wrong = Vec::new();
        for (table, settings) in &self.tables {
            let Some(command) = cli.find_subcommand(&table[0]) else { continue };
            for (key, setting) in settings {
                let Err(error) = parse_alone(command, &setting.arguments) else { continue };
                let missing = missing(&error);
                if let Some(missing) = missing.iter().find(|other| !settings.contains_key(*other)) {
                    let why = format!("it needs the key {missing} as well");
                    wrong.push(setting.wrong(table, key, why));
                }
            }
        }
        wrong
    }

    /// Whether a table has a key.
    pub fn has(&self, table: &[&str], key: &str) -> bool {
        self.table(table).is_some_and(|settings| settings.contains_key(key))
    }

    /// A table's settings as arguments.
    pub fn arguments(&self, table: &[&str]) -> Vec<OsString> {
        let settings = self.table(table).into_iter().flat_map(BTreeMap::values);
        settings.flat_map(|setting| setting.arguments.iter().cloned()).collect()
    }

    fn table(&self, table: &[&str]) -> Option<&BTreeMap<String, Setting>> {
        self.tables.iter().find(|(name, _)| *name == table).map(|(_, settings)| settings)
    }

    /// Says that a failure is that of a key of `[serve]`.
    pub fn blame(&self, key: &str, failure: Failure) -> Option<Wrong> {
        let table = vec!["serve".to_owned()];
        let setting = self.tables.get(&table)?.get(key)?;
        Some(setting.wrong(&table, key, failure.message))
    }
}

impl Setting {
    fn wrong(&self, table: &[String], key: &str, why: String) -> Wrong {
        let key = format!("{}.{key}", table.join("."));
        Wrong { file: self.file.clone(), line: Some(self.line), key: Some(key), why }
    }
}

/// A file that is being read.
struct Reader<'t> {
    file: &'t Path,
    text: &'t str,
    wrong: Vec<Wrong>,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|b| **b == b'\n').count() + 1
    }

    fn refuse<K: AsRef<str>>(&mut self, key: &Spanned<K>, prefix: &str, why: &str) {
        let (line, name) = (self.line(key.span().start), key.get_ref().as_ref());
        let key = Some(format!("{prefix}{name}"));
        self.wrong.push(Wrong { line: Some(line), key, ..Wrong::file(self.file, why) });
    }
}

fn is_list(key: &str) -> bool {
    LISTS.iter().any(|(list, _)| *list == key)
}

/// The options of a command that are keys.
fn options(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let usual = |arg: &&Arg| {
        let long = arg.get_long();
        let of_list = |long| LISTS.iter().any(|(_, option)| *option == Some(long));
        long.is_some_and(|long| !OF_ONE_RUN.contains(&long) && !of_list(long))
    };
    command.get_arguments().filter(usual)
}

/// The arguments that a key and its value stand for.
fn arguments_of(
    command: &clap::Command,
    key: &str,
    value: &DeValue<'_>,
) -> Result<Vec<OsString>, String> {
    let list = LISTS.iter().find(|(list, _)| *list == key && command.get_name() == "serve");
    if let Some((_, option)) = list {
        let DeValue::Array(values) = value else {
            return Err(format!(
                "give a list of texts, such as [\"a\", \"b\"], not {}",
                kind(value)
            ));
        };
        let argument = |value: &Spanned<DeValue<'_>>| {
            let text = text_of(key, value.get_ref())?;
            Ok(option.map_or_else(|| text.clone(), |option| format!("--{option}={text}")).into())
        };
        return values.iter().map(argument).collect();
    }
    let Some(option) = options(command).find(|option| option.get_long() == Some(key)) else {
        return Err(unknown(command, key));
    };
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return match value {
            DeValue::Boolean(true) => Ok(vec![format!("--{key}").into()]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => Err(format!("give true or false, not {}", kind(value))),
        };
    }
    Ok(vec![format!("--{key}={}", text_of(key, value)?).into()])
}

fn text_of(key: &str, value: &DeValue<'_>) -> Result<String, String> {
    let text = match value {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
        DeValue::Integer(_) => return Err("give a decimal number".to_owned()),
        _ => return Err(format!("give a text or a whole number, not {}", kind(value))),
    };
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if PATHS.contains(&key) && !text.starts_with('/') && !text.contains("://") {
        return Err(format!("'{text}' is relative: give the whole path, from /"));
    }
    Ok(text)
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Why a key is not known.
fn unknown(command: &clap::Command, key: &str) -> String {
    if OF_ONE_RUN.contains(&key) && key != "help" && key != "version" {
        return format!("it is an option for one run: give --{key} on the command line");
    }
    let plain = |name: &str| name.replace('_', "-").trim_end_matches('s').to_owned();
    let lists = LISTS.iter().map(|(list, _)| *list).filter(|_| command.get_name() == "serve");
    let mut known: Vec<&str> = options(command).filter_map(Arg::get_long).chain(lists).collect();
    known.sort_unstable();
    match known.iter().find(|name| plain(name) == plain(key)) {
        Some(name) => format!("unknown key; did you mean {name}?"),
        None => format!("unknown key; there are {}", known.join(", ")),
    }
}

fn parse_alone(command: &clap::Command, arguments: &[OsString]) -> Result<(), clap::Error> {
    let name = OsString::from(command.get_name());
    let command = command.clone().args_override_self(true);
    let required: Vec<OsString> = match command.get_name() {
        "attach" => vec!["tank".into()],
        _ => Vec::new(),
    };
    let line = [name].into_iter().chain(required).chain(arguments.iter().cloned());
    command.try_get_matches_from(line).map(drop)
}

/// Checks the value of one key.
fn check_alone(command: &clap::Command, arguments: &[OsString]) -> Result<(), String> {
    match parse_alone(command, arguments) {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => Err(reason(&error)),
        _ => Ok(()),
    }
}

/// The keys of the options that are required and not given.
fn missing(error: &clap::Error) -> Vec<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return Vec::new();
    };
    let name =
        |text: &String| text.split([' ', '=', '[', '<']).next().unwrap_or_default().to_owned();
    missing.iter().map(|text| name(text).trim_start_matches("--").to_owned()).collect()
}

/// The message of an error of the command line's parser, in one line and without the option.
pub fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) {
        return format!("give one of {}", valid.join(", "));
    }
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}
