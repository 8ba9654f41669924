//! The names of all parameters of Nacre. They come from the manual's table, because a process knows
//! only the parameters of its own targets and mounts.

/// The page with the table; a test compares it with a running file system.
const PAGE: &str = include_str!("../../../docs/manual/parameters.md");

/// Whether a node of Nacre has a parameter that can be set and that this pattern matches.
pub(crate) fn can_be_set(pattern: &str) -> bool {
    rows().any(|(name, writable)| writable && matches(pattern, name))
}

/// Names of parameters, with `*` for the names of targets, services and mounts, and whether each
/// can be set.
fn rows() -> impl Iterator<Item = (&'static str, bool)> {
    PAGE.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        Some((name, rest.trim_start().starts_with("yes")))
    })
}

/// Whether a pattern matches a name of the table, component by component.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<&str> = pattern.split(['.', '/']).collect();
    let name: Vec<&str> = name.split('.').collect();
    pattern.len() == name.len()
        && pattern
            .iter()
            .zip(&name)
            .all(|(p, n)| *n == "*" || params::matches_glob(p.as_bytes(), n.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_of_the_manual_are_known() {
        for name in [
            "llite.*.max_cached_mb",
            "osc.lus-OST0000*.max_dirty_mb",
            "mdt.*.root_squash",
            "ost.OSS.ost_io.nrs_policies",
            "jobid_var",
            "osp.*.reserved_mb_*",
        ] {
            assert!(can_be_set(name), "{name}");
        }
        for name in [
            "nosuch.param",
            "llite.*.max_cached_mbb",
            "version",
            "osp.*.slow",
            "",
        ] {
            assert!(!can_be_set(name), "{name}");
        }
    }
}
