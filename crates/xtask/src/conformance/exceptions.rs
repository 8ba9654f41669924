//! The exceptions of a test suite: tests that fail on Nacre or must not run, each with its reason.
//! A run fails if an unlisted test fails, and also if a listed test passes.

use std::collections::BTreeMap;

/// Minimum number of words of a reason.
const REASON_WORDS_MIN: usize = 3;

/// The expected result of a listed test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The test runs and fails.
    Fails,
    /// The test sometimes fails: it depends on timing or on the machine.
    MayFail,
    /// The test does not run: it would hang, take hours or disturb the machine.
    Skip,
}

/// The result of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// The test itself reported that it cannot run here.
    Unsupported,
}

/// The exceptions of a suite by test name.
#[derive(Debug)]
pub(super) struct Exceptions(BTreeMap<String, Rule>);

impl Exceptions {
    /// Parses lines of the form `NAME RULE REASON`, where RULE is `fails`, `may-fail` or `skip`.
    /// `#` starts a comment line.
    ///
    /// # Errors
    ///
    /// The first line with an unknown rule, no reason, or the name of an earlier line.
    pub(super) fn parse(text: &str) -> Result<Exceptions, String> {
        let mut rules = BTreeMap::new();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (name, rule) = (words.next().unwrap_or_default(), words.next());
            let rule = match rule {
                Some("fails") => Rule::Fails,
                Some("may-fail") => Rule::MayFail,
                Some("skip") => Rule::Skip,
                _ => return Err(format!("{line:?}: expected NAME fails|may-fail|skip REASON")),
            };
            if words.count() < REASON_WORDS_MIN {
                return Err(format!(
                    "{line:?}: the reason needs at least {REASON_WORDS_MIN} words"
                ));
            }
            if rules.insert(name.to_owned(), rule).is_some() {
                return Err(format!("{name} is listed twice"));
            }
        }
        Ok(Exceptions(rules))
    }

    /// The rule for a test.
    pub(super) fn rule(&self, test: &str) -> Option<Rule> {
        self.0.get(test).copied()
    }

    /// Names of tests that must not run.
    pub(super) fn skipped_tests(&self) -> impl Iterator<Item = &str> {
        let skipped = self.0.iter().filter(|(_, rule)| **rule == Rule::Skip);
        skipped.map(|(name, _)| name.as_str())
    }

    /// Prints the totals.
    ///
    /// # Errors
    ///
    /// The tests with outcomes that contradict the list.
    pub(super) fn judge(&self, outcomes: &[(String, Outcome)]) -> Result<(), String> {
        let tests_with = |wanted| outcomes.iter().filter(move |(_, outcome)| *outcome == wanted);
        let names = |failed: bool| {
            let wanted = if failed { Outcome::Failed } else { Outcome::Passed };
            let wrong = tests_with(wanted).filter(move |(name, _)| match self.rule(name) {
                Some(Rule::Fails) => !failed,
                Some(Rule::MayFail) => false,
                Some(Rule::Skip) | None => failed,
            });
            wrong.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let (unexpected, stale) = (names(true), names(false));
        println!(
            "=== {} passed, {} failed as listed, {} unsupported here, {} failed unexpectedly",
            tests_with(Outcome::Passed).count(),
            tests_with(Outcome::Failed).count() - unexpected.len(),
            tests_with(Outcome::Unsupported).count(),
            unexpected.len(),
        );
        let mut wrong = Vec::new();
        if !unexpected.is_empty() {
            wrong.push(format!(
                "!!! failed without an exception: {}",
                unexpected.join(" ")
            ));
        }
        if !stale.is_empty() {
            wrong.push(format!(
                "!!! passed although listed as failing (remove the exception): {}",
                stale.join(" ")
            ));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(wrong.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Exceptions, Outcome};

    #[test]
    fn outcomes_must_agree_with_the_list() {
        let list =
            "# why\nt1 fails needs a device\nt2 skip takes many hours\nt3 may-fail depends on timing\n";
        let list = Exceptions::parse(list).unwrap();
        let judge = |outcomes: &[(&str, Outcome)]| {
            let outcomes: Vec<_> = outcomes.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect();
            list.judge(&outcomes)
        };
        let (passed, failed) = (Outcome::Passed, Outcome::Failed);
        judge(&[("t1", failed), ("t3", failed), ("t4", passed)]).unwrap();
        judge(&[("t3", passed), ("t4", Outcome::Unsupported)]).unwrap();
        assert!(
            judge(&[("t1", passed)])
                .unwrap_err()
                .contains("listed as failing")
        );
        assert!(
            judge(&[("t4", failed)])
                .unwrap_err()
                .contains("without an exception: t4")
        );
        assert_eq!(list.skipped_tests().collect::<Vec<_>>(), ["t2"]);
    }

    #[test]
    fn every_exception_needs_a_known_rule_and_a_reason() {
        for bad in [
            "t1",
            "t1 fails",
            "t1 broken for some reason",
            "t fails a b c\nt fails a b c",
        ] {
            Exceptions::parse(bad).unwrap_err();
        }
    }
}
