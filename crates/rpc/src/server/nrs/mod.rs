//! The network request scheduler: which request of those that wait on a partition of a service comes next.
//!
//! There are two policies, as in Lustre: `fifo`, the order of arrival, and `tbf`, in which requests are told apart and go on
//! at the rates of rules. They are for ordinary requests: what lets others go on is first in, first out, and never held
//! back. Each partition has buckets of its own, so that a rate is one partition's, as in Lustre.

mod key;
mod rule;
mod show;
mod tbf;

pub(super) use key::{Key, KeyKind};
pub(super) use rule::Rules;
pub(super) use show::{Load, show_classes, show_policies, show_rules};
pub(super) use tbf::Tbf;

/// A policy, as it was chosen.
#[derive(Debug, Clone)]
pub(super) enum Policy {
    /// The order of arrival.
    Fifo,
    /// Token buckets.
    Tbf {
        /// What requests are told apart by.
        kind: KeyKind,
        rules: Rules,
    },
}

impl Policy {
    /// Reads what `nrs_policies` is set to: a name, `reg` or nothing, and an argument.
    pub(super) fn parse(text: &str, default_rate: u64) -> Result<Policy, String> {
        let mut words = text.split_whitespace().peekable();
        let name = words.next().unwrap_or_default();
        let kind = ordinary(&mut words).map(|()| words.next().unwrap_or_default())?;
        match (name, words.next()) {
            ("fifo", None) if kind.is_empty() => Ok(Policy::Fifo),
            ("tbf", None) => Ok(Policy::Tbf {
                kind: KeyKind::parse(kind)?,
                rules: Rules::new(default_rate),
            }),
            _ => Err("expected fifo, or tbf and nid, jobid, uid, gid, opcode or nothing".into()),
        }
    }

    /// Carries out a command on the rules (`nrs_tbf_rule`).
    pub(super) fn command(&mut self, text: &str, default_rate: u64) -> Result<(), String> {
        let mut words = text.split_whitespace().peekable();
        let first = words.peek().copied().unwrap_or_default();
        ordinary(&mut words)?;
        let text = if first == "reg" {
            text.trim_start().trim_start_matches("reg")
        } else {
            text
        };
        match self {
            Policy::Fifo => Err("the policy is fifo: set nrs_policies to tbf first".into()),
            Policy::Tbf { kind, rules } => rules.command(text, *kind, default_rate),
        }
    }
}

/// Passes over a `reg`; refuses `hp`.
fn ordinary<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Result<(), String> {
    if words.peek() == Some(&"hp") {
        return Err("requests of high priority are first in, first out, and are not held back".into());
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
    fn rules_are_of_ordinary_requests() {
        let mut tbf = Policy::parse("tbf uid", 1).unwrap();
        tbf.command("reg start a uid={1} rate=5", 1).unwrap();
        assert!(
            tbf.command("hp start b uid={1}", 1)
                .unwrap_err()
                .contains("not held back")
        );
        assert!(
            Policy::Fifo
                .command("start a uid={1}", 1)
                .unwrap_err()
                .contains("tbf first")
        );
    }
}
