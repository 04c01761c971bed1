//! Manual pages and completions: each command has its page, which the formatter takes without a
//! word, and shells complete commands and options.

use std::fs;

use crate::common::{Bench, text};
use weft_testkit::{Need, command, have, run};

/// The names of the commands that `weft … --help` lists.
fn commands(bench: &Bench, of: &[&str]) -> Vec<String> {
    let help = bench.weft(&[of, &["--help"]].concat());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // What follows of a description is indented further.
    let names = listed.filter(|line| !line.starts_with("   ")).map(str::trim_start);
    let names = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

#[test]
fn each_command_has_a_page_that_can_be_formatted() {
    let bench = Bench::new("manual");
    let _ = bench.weft(&["man", "man"]);
    let page = |name: &str| bench.path(&format!("man/man1/{name}.1"));
    let mut expected = vec!["weft".to_owned()];
    expected.extend(commands(&bench, &[]).iter().map(|name| format!("weft-{name}")));
    expected.extend(commands(&bench, &["fs"]).iter().map(|name| format!("weft-fs-{name}")));
    for name in ["weft-serve", "weft-attach", "weft-man", "weft-fs-mount", "weft-fs-fsck"] {
        assert!(expected.iter().any(|page| page == name), "{name} in {expected:?}");
    }
    for name in &expected {
        let text = fs::read_to_string(page(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains(".SH NAME"), "{name}: {text}");
        assert!(*name == "weft" || text.contains("weft(1)"), "{name}: {text}");
    }
    let serve = fs::read_to_string(page("weft-serve")).expect("a page");
    let (before, examples) = serve.split_once(".SH EXAMPLES").expect("examples");
    assert!(before.contains("Recognises members by their labels") && !before.contains("Examples:"));
    assert!(examples.contains("\nweft serve d0 d1"), "{examples}");
    for (helper, target) in [("mount", "weft-fs-mount"), ("fsck", "weft-fs-fsck")] {
        let path = bench.path(&format!("man/man8/{helper}.weftfs.8"));
        let leads = fs::read_to_string(path).expect("a page");
        assert_eq!(leads, format!(".so man1/{target}.1\n"));
    }
    if !have(&[Need::Tool("groff")]) {
        return;
    }
    for name in &expected {
        let mut groff = command("groff");
        let output = run(groff.args(["-ww", "-mandoc", "-Tutf8", "-K", "utf8"]).arg(page(name)));
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(complaints, "", "{name}");
    }
}

#[test]
fn shells_complete_commands_and_options() {
    let bench = Bench::new("completions");
    for shell in ["bash", "zsh", "fish"] {
        let script = bench.weft(&["completions", shell]);
        assert!(script.contains("force-degraded"), "{shell}: {script}");
    }
    if !have(&[Need::Tool("bash")]) {
        return;
    }
    fs::write(bench.path("weft.bash"), bench.weft(&["completions", "bash"])).expect("a file");
    let completed = |words: &[&str]| {
        let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "set -e; . {}; COMP_WORDS=({}); COMP_CWORD={}; _weft weft '{}' '{}' || true\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            text(&bench.path("weft.bash")),
            line.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = run(command("bash").args(["-c", &script]));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["weft", "atta"]), ["attach"]);
    assert_eq!(completed(&["weft", "fs", "mo"]), ["mount"]);
    assert_eq!(completed(&["weft", "serve", "--force"]), ["--force-degraded"]);
    assert_eq!(completed(&["weft", "rebuild", "--pace", "gr"]), ["greedy"]);
}
