//! Formats policies, rules and classes for `nrs_policies`, `nrs_tbf_rule` and `nrs_tbf_classes`.
//! The first two match Lustre's format exactly.

use super::tbf::Tbf;
use super::{KeyKind, Policy};
use std::fmt::Write;

/// Numbers of queued requests and of requests being handled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) queued: usize,
    pub(crate) active: usize,
}

/// The policies of a service, with the loads of ordinary and high-priority requests.
pub(crate) fn show_policies(policy: &Policy, ordinary: Load, high: Load) -> String {
    let none = Load::default();
    let (fifo, tbf, kind) = match policy {
        Policy::Fifo => (ordinary, none, None),
        Policy::Tbf { kind, .. } => (none, ordinary, Some(*kind)),
    };
    let mut out = String::from("\nregular_requests:\n");
    out.push_str(&entry("fifo", true, true, fifo));
    let name = kind.map_or("tbf".to_owned(), |k| match k {
        KeyKind::Generic => "tbf".to_owned(),
        k => format!("tbf {}", k.name()),
    });
    out.push_str(&entry(&name, kind.is_some(), false, tbf));
    out.push_str("high_priority_requests:\n");
    out.push_str(&entry("fifo", true, true, high));
    out.push_str(&entry("tbf", false, false, none));
    out
}

fn entry(name: &str, started: bool, fallback: bool, load: Load) -> String {
    let state = if started { "started" } else { "stopped" };
    let fallback = if fallback { "yes" } else { "no" };
    let Load { queued, active } = load;
    format!(
        "  - name: {name}\n    state: {state}\n    fallback: {fallback}\n    queued: {queued:<20}\n    active: {active:<20}\n\n"
    )
}

/// The rules on each partition, with the number of classes of each rule.
pub(crate) fn show_rules(partitions: &[(usize, String)]) -> String {
    let by_partition: String = partitions
        .iter()
        .map(|(cpt, rules)| format!("CPT {cpt}:\n{rules}"))
        .collect();
    format!("regular_requests:\n{by_partition}high_priority_requests:\n")
}

/// The classes on each partition.
pub(crate) fn show_classes(partitions: &[(usize, String)]) -> String {
    partitions
        .iter()
        .map(|(cpt, classes)| format!("CPT {cpt}:\n{classes}"))
        .collect()
}

impl<W> Tbf<W> {
    /// A line for each rule.
    pub(crate) fn show_rules(&self) -> String {
        let (rules, class_counts) = self.rules();
        let line = |(r, classes): (&super::rule::Rule, &usize)| {
            format!("{} {} {}, ref {classes}\n", r.name, r.conditions, r.rate)
        };
        rules.iter().zip(&class_counts).map(line).collect()
    }

    /// A line for each class, the longest wait first.
    pub(crate) fn show_classes(&self) -> String {
        let mut out = String::new();
        for (key, rule, waiting, c) in self.classes() {
            let _ = writeln!(
                out,
                "{key} rule {rule} requests {} throttled {} wait_usec {} queued {waiting}",
                c.requests,
                c.throttled,
                c.wait_time.as_micros()
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Load, show_policies, show_rules};
    use crate::server::nrs::{Key, Policy, Tbf};
    use cpt::HashSeed;
    use std::time::Instant;

    #[test]
    fn policies_are_shown_as_lustre_shows_them() {
        let load = Load { queued: 2, active: 7 };
        let shown = show_policies(&Policy::Fifo, load, Load::default());
        assert!(
            shown.starts_with(
                "\nregular_requests:\n  - name: fifo\n    state: started\n    fallback: yes\n    queued: 2                   \n    active: 7                   \n\n  - name: tbf\n    state: stopped\n    fallback: no\n"
            ),
            "{shown}"
        );
        let tbf = Policy::parse("tbf nid", 5).unwrap();
        let shown = show_policies(&tbf, load, load);
        assert!(
            shown.contains("  - name: tbf nid\n    state: started\n    fallback: no\n    queued: 2 "),
            "{shown}"
        );
    }

    #[test]
    fn rules_are_shown_as_lustre_shows_them() {
        let mut policy = Policy::parse("tbf uid", 10_000).unwrap();
        policy.execute("start slow uid={500 501} rate=7", 10_000).unwrap();
        let Policy::Tbf { rules, .. } = policy else {
            panic!()
        };
        let mut tbf = Tbf::new(rules, 3, HashSeed::fixed(0), Instant::now());
        tbf.push(
            Key {
                uid: Some(501),
                ..Key::default()
            },
            (),
            Instant::now(),
        );
        assert_eq!(
            show_rules(&[(2, tbf.show_rules())]),
            "regular_requests:\nCPT 2:\nslow uid={500 501} 7, ref 1\ndefault * 10000, ref 0\nhigh_priority_requests:\n"
        );
        assert_eq!(
            tbf.show_classes(),
            "uid={501} rule slow requests 1 throttled 0 wait_usec 0 queued 1\n"
        );
    }
}
