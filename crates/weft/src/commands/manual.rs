//! `weft man`: a manual page for each command, made from its help, and for the helpers of `mount`
//! and `fsck`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::answer;

use crate::cli::{Cli, ManArgs};

/// Pages of the helpers, and the pages that they lead to.
const HELPERS: [(&str, &str); 2] =
    [("mount.weftfs", "weft-fs-mount"), ("fsck.weftfs", "weft-fs-fsck")];

/// `weft man`.
pub fn manual(args: &ManArgs, json: bool) -> Outcome {
    let folder = &args.folder;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let count = write_pages(&command, folder)
        .map_err(|e| Failure::new(format!("{}: {e}", folder.display())))?;
    if json {
        return answer(&json!({ "folder": folder, "pages": count }));
    }
    Ok(())
}

/// Writes all pages; returns their number.
fn write_pages(command: &Command, folder: &Path) -> io::Result<usize> {
    let (commands, helpers) = (folder.join("man1"), folder.join("man8"));
    fs::create_dir_all(&commands)?;
    fs::create_dir_all(&helpers)?;
    for (name, target) in HELPERS {
        fs::write(helpers.join(format!("{name}.8")), format!(".so man1/{target}.1\n"))?;
    }
    Ok(write_page(command, &commands)? + HELPERS.len())
}

/// Writes the page of a command, and those of its subcommands.
fn write_page(command: &Command, folder: &Path) -> io::Result<usize> {
    let mut pages = 1;
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages += write_page(subcommand, folder)?;
    }
    let man = Man::new(command.clone()).manual("weft").source(env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    render(&man, command, &mut page)?;
    fs::write(folder.join(man.get_filename()), page)?;
    Ok(pages)
}

fn render(man: &Man, command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let is_example = |line: &str| line.starts_with("Example");
    let examples = help.lines().skip_while(|line| !is_example(line)).skip(1);
    let text: Vec<&str> = help.lines().take_while(|line| !is_example(line)).collect();
    prose(&text).to_writer(page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(page)?;
    }
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    let examples: Vec<&str> =
        examples.map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    let mut end = Roff::new();
    if !examples.is_empty() {
        end.control("SH", ["EXAMPLES"]);
        verbatim(&mut end, &examples);
    }
    if command.get_display_name().is_some_and(|name| name != "weft") {
        end.control("SH", ["SEE ALSO"]).text([roman("weft(1)")]);
    }
    end.to_writer(page)?;
    page.flush()
}

/// The help that follows a command's options: a paragraph is one line, and what has several, such
/// as a table, stays as it is.
fn prose(lines: &[&str]) -> Roff {
    let mut roff = Roff::new();
    for paragraph in lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()) {
        roff.control("PP", []);
        match paragraph {
            [line] => {
                roff.text([roman(*line)]);
            }
            lines => verbatim(&mut roff, lines),
        }
    }
    roff
}

/// Lines that stay as they are.
fn verbatim(roff: &mut Roff, lines: &[&str]) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff.control("fi", []);
}
