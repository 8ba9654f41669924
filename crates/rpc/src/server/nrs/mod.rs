//! The network request scheduler (NRS): the order of ordinary requests in a partition's queue.
//!
//! There are two policies, as in Lustre: `fifo`, the order of arrival, and `tbf` (token bucket
//! filter), which limits classes of requests to the rates of rules. High-priority requests are
//! always handled in the order of arrival, and never throttled. Each partition has its own buckets,
//! so that a rate applies to each partition, as in Lustre.

mod key;
mod rule;
mod show;
mod tbf;

pub(super) use key::{Key, KeyKind};
pub(super) use rule::Rules;
pub(super) use show::{Load, show_classes, show_policies, show_rules};
pub(super) use tbf::Tbf;

/// A policy with its settings.
#[derive(Debug, Clone)]
pub(super) enum Policy {
    /// The order of arrival.
    Fifo,
    /// Token buckets.
    Tbf {
        /// The field that distinguishes classes.
        kind: KeyKind,
        rules: Rules,
    },
}

impl Policy {
    /// Parses the value of `nrs_policies`: a name, optionally `reg`, and an argument.
    pub(super) fn parse(text: &str, default_rate: u64) -> Result<Policy, String> {
        let mut words = text.split_whitespace().peekable();
        let name = words.next().unwrap_or_default();
        let kind = skip_reg(&mut words).map(|()| words.next().unwrap_or_default())?;
        match (name, words.next()) {
            ("fifo", None) if kind.is_empty() => Ok(Policy::Fifo),
            ("tbf", None) => Ok(Policy::Tbf {
                kind: KeyKind::parse(kind)?,
                rules: Rules::new(default_rate),
            }),
            _ => Err("expected fifo, or tbf and nid, jobid, uid, gid, opcode or nothing".into()),
        }
    }

    /// Executes a command on the rules (`nrs_tbf_rule`).
    pub(super) fn execute(&mut self, text: &str, default_rate: u64) -> Result<(), String> {
        let mut words = text.split_whitespace().peekable();
        let first = words.peek().copied().unwrap_or_default();
        skip_reg(&mut words)?;
        let text = if first == "reg" {
            text.trim_start().trim_start_matches("reg")
        } else {
            text
        };
        match self {
            Policy::Fifo => Err("the policy is fifo: set nrs_policies to tbf first".into()),
            Policy::Tbf { kind, rules } => rules.execute(text, *kind, default_rate),
        }
    }
}

/// Skips the word `reg` (ordinary requests); refuses `hp` (high-priority requests).
fn skip_reg<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Result<(), String> {
    if words.peek() == Some(&"hp") {
        return Err("high-priority requests are always fifo and never throttled".into());
    }
    words.next_if_eq(&"reg");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Policy;

    #[test]
    fn policies_are_named_as_in_lustre() {
        for (text, name) in [
            ("tbf", "generic"),
            ("tbf nid", "nid"),
            ("tbf reg jobid", "jobid"),
            (" tbf  opcode ", "opcode"),
        ] {
            assert!(
                matches!(Policy::parse(text, 1), Ok(Policy::Tbf { kind, .. }) if kind.name() == name),
                "{text}"
            );
        }
        assert!(matches!(Policy::parse("fifo reg", 1), Ok(Policy::Fifo)));
        for text in ["", "crrn", "tbf shoe", "tbf nid uid", "fifo nid", "tbf hp nid"] {
            assert!(Policy::parse(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn rules_need_the_tbf_policy_and_ordinary_requests() {
        let mut tbf = Policy::parse("tbf uid", 1).unwrap();
        tbf.execute("reg start a uid={1} rate=5", 1).unwrap();
        assert!(
            tbf.execute("hp start b uid={1}", 1)
                .unwrap_err()
                .contains("never throttled")
        );
        assert!(
            Policy::Fifo
                .execute("start a uid={1}", 1)
                .unwrap_err()
                .contains("tbf first")
        );
    }
}
