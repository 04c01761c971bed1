//! Drawings of state machines, made from the function by which states change.
//!
//! A page has the drawing between the line `stateDiagram-v2` and the end of its block, under a
//! heading. A test compares it with the function, so that neither changes without the other.

use std::collections::BTreeSet;

/// The arrows of a state machine as lines of a Mermaid drawing: a state, the next one, the event.
///
/// Each state and event has its name. States with the same name are drawn as one; an event that
/// leads to a state with the same name, or that `after` refuses, is not drawn.
///
/// # Panics
/// If `after` gives a state that is like none of `states`.
pub fn drawing<S: Copy, E: Copy>(
    states: &[(&str, S)],
    events: &[(&str, E)],
    after: impl Fn(S, E) -> Option<S>,
) -> String {
    let name = |state: S| {
        let kind = std::mem::discriminant(&state);
        let same = states.iter().find(|(_, known)| std::mem::discriminant(known) == kind);
        same.expect("every state has a name").0
    };
    let mut drawn = BTreeSet::new();
    let mut lines = String::new();
    for (from, state) in states {
        for (what, event) in events {
            let Some(next) = after(*state, *event).map(name).filter(|next| next != from) else {
                continue;
            };
            let arrow = format!("    {from} --> {next}: {what}\n");
            if drawn.insert(arrow.clone()) {
                lines.push_str(&arrow);
            }
        }
    }
    lines
}

/// Compares a drawing with the one that a page has under a heading.
///
/// # Panics
/// If the page has no such heading, no drawing under it, or another drawing.
#[track_caller]
pub fn assert_drawn(page: &str, heading: &str, drawing: &str) {
    let (_, part) = page.split_once(&format!("\n{heading}\n")).expect("the page has this heading");
    let (_, rest) = part.split_once("stateDiagram-v2\n").expect("there is a drawing");
    let (drawn, _) = rest.split_once("```").expect("the drawing has an end");
    assert_eq!(drawn, drawing, "under {heading} the page should have:\n{drawing}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Door {
        Open,
        Closed { by: u8 },
    }

    const STATES: [(&str, Door); 2] = [("open", Door::Open), ("closed", Door::Closed { by: 1 })];

    fn after(door: Door, pushes: bool) -> Option<Door> {
        match (door, pushes) {
            (Door::Open, false) => Some(Door::Closed { by: 2 }),
            (Door::Closed { .. }, true) => Some(Door::Open),
            (Door::Closed { by }, false) => Some(Door::Closed { by }),
            (Door::Open, true) => None,
        }
    }

    #[test]
    fn a_drawing_has_the_events_that_change_the_state() {
        let lines = drawing(&STATES, &[("push", true), ("pull", false)], after);
        assert_eq!(lines, "    open --> closed: pull\n    closed --> open: push\n");
    }

    #[test]
    #[should_panic(expected = "the page should have")]
    fn a_page_with_another_drawing_is_found() {
        let page = "# Doors\n\n## A door\n\n```mermaid\nstateDiagram-v2\n    a --> b: c\n```\n";
        assert_drawn(page, "## A door", "    a --> b: c\n");
        assert_drawn(page, "## A door", "    a --> b: d\n");
    }
}
