//! `weft plan`: compares codes for some disks, as a table.

mod args;

use weft_cli::disks::{DiskAddress, Opener};
use weft_cli::failure::{FAILED, Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::progress::Progress;
use weft_cli::size;
use weft_cli::thread;
use weft_code::CodeSpec;

use crate::{Emphasis, HOURS_PER_YEAR, Plan, PlanError, PlanRequest, Row, plan as compare};
pub use args::PlanArgs;

/// `weft plan`.
///
/// # Errors
/// If no code is left that meets the goals, or the arguments do not fit together.
pub fn run(args: &PlanArgs, json: bool) -> Outcome {
    let codes = codes_of(&args.codes)?;
    let request = request_of(args)?;
    let mut progress = Progress::new("plan", 1, json);
    let told = |done: usize, of: usize| {
        progress.at(done as u64, of as u64, &format!("{done} of {of} codes"));
    };
    let plan = compare(&request, &codes, told).map_err(explain)?;
    drop(progress);
    if json {
        answer(&plan)?;
    } else {
        show(&plan, args);
    }
    if plan.recommended.is_none() {
        return Err(Failure::said(FAILED));
    }
    Ok(())
}

fn codes_of(given: &[String]) -> Result<Vec<CodeSpec>, Failure> {
    let parse = |code: &String| {
        code.parse().map_err(|e| {
            Failure::usage(format!("--code: {e}"))
                .hint("`weft create --help` lists the codes, for example raid6 or drc-g:4,2,1")
        })
    };
    given.iter().map(parse).collect()
}

fn request_of(args: &PlanArgs) -> Result<PlanRequest, Failure> {
    let (disks, size_bytes) = match (args.disks, args.size) {
        (Some(disks), Some(size)) => (disks, size),
        _ => (args.members.len(), smallest(&args.members)?),
    };
    let emphasis = match (args.read, args.write, args.most) {
        (true, ..) => Emphasis::Read,
        (_, true, _) => Emphasis::Write,
        (.., true) => Emphasis::Capacity,
        _ => Emphasis::Balanced,
    };
    Ok(PlanRequest {
        disks,
        size_bytes,
        bandwidth_bytes_s: args.bandwidth,
        rebuild_share: args.rebuild_share,
        mttf_h: args.mttf,
        survive: args.survive.unwrap_or(match disks {
            0 | 1 => 0,
            2..=4 => 1,
            _ => 2,
        }),
        mttdl_years: args.mttdl.map(|hours| hours / HOURS_PER_YEAR),
        capacity_bytes: args.capacity,
        emphasis,
        monte_carlo_cycles: args.monte_carlo,
        seed: args.seed,
    })
}

/// The size of the smallest member; nothing else is read.
fn smallest(members: &[String]) -> Result<u64, Failure> {
    let members = members.to_vec();
    thread::run(move |opener: Opener| async move {
        let mut least = u64::MAX;
        for member in &members {
            if let DiskAddress::Path(path) = DiskAddress::of(member)
                && !path.exists()
            {
                return Err(Failure::new(format!("{member}: no such file or device"))
                    .hint("check the name, or plan without disks: --disks 7 --size 4T"));
            }
            least = least.min(opener.open(member, true).await?.info().size_bytes);
        }
        Ok(least)
    })
}

fn explain(error: PlanError) -> Failure {
    match error {
        PlanError::Request(problem) => Failure::usage(problem),
        PlanError::Layout(error) => Failure::new(error.to_string())
            .hint("without --code, `weft plan` compares the codes that fit these disks"),
    }
}

/// The rows to show: the useful ones, or all.
fn chosen<'a>(plan: &'a Plan, args: &PlanArgs) -> Vec<&'a Row> {
    let everything = args.all || !args.codes.is_empty() || plan.recommended.is_none();
    let wanted =
        |row: &&Row| everything || row.best_in_something || Some(row.code) == plan.recommended;
    plan.codes.iter().filter(wanted).collect()
}

/// Columns of a terminal, as it is at first.
const COLUMNS: usize = 80;

/// Prints text in lines of at most [`COLUMNS`]. The first starts with `head`, the rest with
/// `indent` spaces.
fn wrapped(head: &str, indent: usize, text: &str) {
    let (mut line, mut words) = (head.to_owned(), 0);
    for word in text.split(' ') {
        if words > 0 && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            outln!("{line}");
            (line, words) = (" ".repeat(indent), 0);
        }
        if words > 0 {
            line.push(' ');
        }
        line.push_str(word);
        words += 1;
    }
    outln!("{line}");
}

fn show(plan: &Plan, args: &PlanArgs) {
    let request = &plan.request;
    outln!(
        "{} disks of {}, {}, {:.0} % of it for a rebuild; MTTF {:.1e} hours",
        request.disks,
        size::show(request.size_bytes),
        size::show_rate(request.bandwidth_bytes_s),
        request.rebuild_share * 100.0,
        request.mttf_h,
    );
    outln!("goals: {}\n", goals(request));
    let rows = chosen(plan, args);
    let mut table = vec![HEAD.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| line(row, plan.recommended == Some(row.code))));
    print_table(&table);
    outln!();
    wrapped("", 0, LEGEND);
    if rows.iter().any(|row| row.survives.iter().any(|s| !s.exact)) {
        outln!("~ estimated from a sample of the sets (seed {})", request.seed);
    }
    show_stripes(&rows);
    for row in rows.iter().filter(|row| !row.fits()) {
        wrapped("", 2, &format!("{} does not qualify: {}", row.code, row.misses.join(", ")));
    }
    let hidden = plan.codes.len() - rows.len();
    if hidden > 0 {
        let (codes, miss, them) = match hidden {
            1 => ("code", "misses", "it"),
            _ => ("codes", "miss", "them"),
        };
        outln!(
            "{hidden} more {codes} {miss} a goal, or another beats {them} in every figure: see --all"
        );
    }
    show_simulated(&rows);
    outln!();
    match plan.recommended {
        Some(code) => {
            wrapped("", 0, &format!("Take {code}: {}.", plan.reason));
            plan.notes.iter().for_each(|note| wrapped("Note: ", 0, &format!("{note}.")));
            outln!("  weft create NAME --code {code} MEMBER…");
        }
        None => {
            wrapped("", 0, &format!("{}.", plan.reason));
            outln!("Lower the goals, or add disks.");
        }
    }
}

const LEGEND: &str = "\
survives: share of all sets of 1, 2, 3, 4 failed disks; degr.: read speed left with the worst disk \
lost; read: bytes read per byte rebuilt; write: disk operations of a small write (reads+writes); \
MTTDL: years";

/// Prints a stripe of each code.
fn show_stripes(rows: &[&Row]) {
    outln!("\nstripes (D data, L local parity, G global parity, P Q R parity, C copy):");
    let width = rows.iter().map(|row| row.code.to_string().chars().count()).max().unwrap_or(0);
    for row in rows {
        let code = row.code.to_string();
        wrapped(&format!("  {code:<width$}  "), width + 4, &row.picture);
    }
    outln!();
}

const HEAD: [&str; 9] =
    ["", "code", "usable", "survives %", "degr.", "rebuild", "read", "write", "MTTDL"];

fn goals(request: &PlanRequest) -> String {
    let mut goals = vec![format!("any {} may fail", request.survive)];
    goals.extend(request.mttdl_years.map(|years| format!("MTTDL {years:.1e} years")));
    goals.extend(request.capacity_bytes.map(|bytes| format!("{} usable", size::show(bytes))));
    goals.push(
        match request.emphasis {
            Emphasis::Balanced => "no emphasis",
            Emphasis::Read => "favour reads",
            Emphasis::Write => "favour small writes",
            Emphasis::Capacity => "favour capacity",
        }
        .into(),
    );
    goals.join(" · ")
}

fn line(row: &Row, recommended: bool) -> Vec<String> {
    let survives = row.survives.iter().map(|s| {
        // Never rounded up to 100 %.
        let percent = (s.share() * 100.0).floor();
        let sampled = if s.exact { "" } else { "~" };
        format!("{sampled}{percent:.0}")
    });
    vec![
        if recommended { "→" } else { "" }.into(),
        row.code.to_string(),
        size::show(row.capacity_bytes),
        survives.collect::<Vec<_>>().join(" "),
        row.degraded.map_or_else(dash, |degraded| format!("{:.0} %", degraded.worst * 100.0)),
        row.rebuild.map_or_else(dash, |rebuild| time(rebuild.hours)),
        row.rebuild.map_or_else(dash, |rebuild| format!("{:.1}", rebuild.reads)),
        operations(row),
        format!("{:.1e}", row.mttdl_years),
    ]
}

/// A time in few characters.
fn time(hours: f64) -> String {
    match hours {
        0.0..0.1 => format!("{:.0} s", hours * 3600.0),
        0.1..1.0 => format!("{:.0} min", hours * 60.0),
        1.0..48.0 => format!("{hours:.1} h"),
        _ => format!("{:.1} d", hours / 24.0),
    }
}

/// Shown where there is no figure.
fn dash() -> String {
    "–".into()
}

fn operations(row: &Row) -> String {
    let whole = |n: f64| if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") };
    format!("{}+{}", whole(row.write.reads), whole(row.write.writes))
}

/// Prints columns, each as wide as its widest cell.
fn print_table(table: &[Vec<String>]) {
    let width =
        |column: usize| table.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    for line in table {
        let cells = line.iter().enumerate().map(|(column, cell)| {
            let pad = " ".repeat(width(column) - cell.chars().count());
            // Numbers to the right, names to the left.
            if matches!(column, 2 | 4..=8) { pad + cell } else { cell.clone() + &pad }
        });
        let (mark, cells) = cells.collect::<Vec<_>>().split_first().map_or_else(
            || (String::new(), String::new()),
            |(mark, cells)| (mark.clone(), cells.join("  ")),
        );
        outln!("{}", format!("{mark} {cells}").trim_end());
    }
}

fn show_simulated(rows: &[&Row]) {
    for row in rows {
        if let Some(simulated) = row.simulated {
            outln!(
                "{}: MTTDL by simulation {:.2e} ± {:.0e} years (99 %), by the chain {:.2e}",
                row.code,
                simulated.mttdl_years,
                2.58 * simulated.standard_error_years,
                row.mttdl_years
            );
        }
    }
}
