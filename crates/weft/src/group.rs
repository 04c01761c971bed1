//! Groups of users, as `--socket-group` takes them.

use std::fs;

/// The number of a group, from the number itself or a name in `/etc/group`.
pub fn parse(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    find(&groups, text).ok_or_else(|| {
        "/etc/group has no such group; give a number for a group from another source".to_owned()
    })
}

/// The number of the group `name` in lines of `name:password:number:members`.
fn find(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let groups = "root:x:0:\n# disk:x:1:\ndisk:x:6:a,b\nbroken:x\n:x:9:\n";
        assert_eq!(find(groups, "disk"), Some(6));
        for none in ["dis", "a", "broken", "x"] {
            assert_eq!(find(groups, none), None, "{none}");
        }
        assert_eq!(parse("4711"), Ok(4711));
        assert!(parse("no-such-group-here").is_err());
    }
}
