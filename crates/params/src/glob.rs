//! Names and patterns of parameters.
//!
//! A name is a path of components separated by dots or slashes, as in `lctl`. A NID inside a name
//! contains dots (`obdfilter.fs-OST0000.exports.10.0.0.1@tcp.stats`) and is one component. In a
//! pattern, `*` matches any bytes of one component, `?` one byte, and `[abc]` one byte of a set.

/// Splits a name or a pattern into components.
pub(crate) fn components(name: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in name.split(['.', '/']) {
        let octet = |s: &String| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if part.contains('@') && out.len() >= 3 && out[out.len() - 3..].iter().all(octet) {
            let octets = out.split_off(out.len() - 3);
            out.push(format!("{}.{part}", octets.join(".")));
        } else {
            out.push(part.to_owned());
        }
    }
    out
}

/// Whether `pattern` matches `name`, component by component.
pub(crate) fn matches(pattern: &[String], name: &[String]) -> bool {
    pattern.len() == name.len()
        && pattern
            .iter()
            .zip(name)
            .all(|(p, n)| matches_glob(p.as_bytes(), n.as_bytes()))
}

/// Whether a pattern with `*`, `?` and `[abc]` matches a text, such as one component of a
/// parameter's name. Backtracks to the latest `*` only, so the cost is at most the product of both
/// lengths.
pub fn matches_glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position behind the latest `*`, and the end of the bytes that this `*` matches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(len) = match_one(&pattern[p..], name[n]) {
            p += len;
            n += 1;
        } else if let Some((after, taken)) = star {
            star = Some((after, taken + 1));
            p = after;
            n = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// The length of the pattern's first element (`?`, a set or a plain byte) if it matches the byte
/// `c`.
fn match_one(pattern: &[u8], c: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let end = pattern.iter().position(|&b| b == b']')?;
            set_contains(&pattern[1..end], c).then_some(end + 1)
        }
        &p => (p == c).then_some(1),
    }
}

/// Whether the set inside `[...]` contains the byte `c`. The set may have ranges; a leading `!` or
/// `^` negates it.
fn set_contains(set: &[u8], c: u8) -> bool {
    let (negated, set) = match set {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    let mut i = 0;
    while i < set.len() {
        if i + 2 < set.len() && set[i + 1] == b'-' {
            found |= (set[i]..=set[i + 2]).contains(&c);
            i += 3;
        } else {
            found |= set[i] == c;
            i += 1;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, name: &str) -> bool {
        matches(&components(pattern), &components(name))
    }

    #[test]
    fn a_star_stays_within_one_component() {
        assert!(is_match(
            "osc.*.max_rpcs_in_flight",
            "osc.fs-OST0000-osc-ab12.max_rpcs_in_flight"
        ));
        assert!(is_match(
            "osc.fs-OST*-osc-*.max_*",
            "osc.fs-OST0000-osc-ab12.max_dirty_mb"
        ));
        assert!(!is_match("osc.*", "osc.fs-OST0000-osc-ab12.max_dirty_mb"));
        assert!(!is_match(
            "*.max_dirty_mb",
            "osc.fs-OST0000-osc-ab12.max_dirty_mb"
        ));
    }

    #[test]
    fn a_nid_is_one_component() {
        let name = "obdfilter.fs-OST0000.exports.10.0.0.1@tcp.stats";
        assert_eq!(components(name).len(), 5);
        assert!(is_match("obdfilter.*.exports.*.stats", name));
        assert!(is_match("obdfilter.*.exports.10.0.0.1@tcp.stats", name));
        assert!(!is_match("obdfilter.*.exports.10.0.0.2@tcp.stats", name));
    }

    #[test]
    fn sets_ranges_and_question_marks_match_one_byte() {
        assert!(is_match("a[bc]d", "acd"));
        assert!(!is_match("a[!bc]d", "acd"));
        assert!(is_match("OST000[0-3]", "OST0002"));
        assert!(is_match("OST000?", "OST0009"));
        assert!(!is_match("OST000?", "OST000"));
        assert!(!is_match("a[b", "ab"));
    }

    #[test]
    fn slashes_separate_components_like_dots() {
        assert!(is_match("osc/*/stats", "osc.x.stats"));
    }
}
