//! One parameter: functions that show its value and, if it is writable, set it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Value;

type Show = dyn Fn() -> Value + Send + Sync;
type Set = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// A parameter. Cheap to clone.
#[derive(Clone)]
pub struct Param {
    pub(crate) show: Arc<Show>,
    /// `None`: the parameter is read-only.
    pub(crate) set: Option<Arc<Set>>,
    /// One line of documentation; may be empty.
    pub(crate) about: &'static str,
    /// Advice for a caller that tries to set this read-only parameter; may be empty.
    pub(crate) instead: &'static str,
}

impl Param {
    /// A parameter that cannot be set.
    pub fn read_only<V: Into<Value>>(show: impl Fn() -> V + Send + Sync + 'static) -> Param {
        Param {
            show: Arc::new(move || show().into()),
            set: None,
            about: "",
            instead: "",
        }
    }

    /// A number that grows and shrinks, and cannot be set.
    pub fn gauge(number: impl Fn() -> u64 + Send + Sync + 'static) -> Param {
        Param::read_only(move || Value::Gauge(number()))
    }

    /// A number that only grows, and cannot be set.
    pub fn counter(number: impl Fn() -> u64 + Send + Sync + 'static) -> Param {
        Param::read_only(move || Value::Counter(number()))
    }

    /// A writable parameter. The error text of `set` names the expected values.
    pub fn read_write<V: Into<Value>>(
        show: impl Fn() -> V + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Param {
        Param {
            set: Some(Arc::new(set)),
            ..Param::read_only(show)
        }
    }

    /// A writable whole number within `range`, stored in an atomic.
    pub fn atomic(value: Arc<AtomicU64>, range: RangeInclusive<u64>) -> Param {
        let shown = value.clone();
        Param::read_write(
            move || Value::Gauge(shown.load(Ordering::Relaxed)),
            move |text| {
                let (low, high) = (range.start(), range.end());
                let n = text.trim().parse::<u64>().ok().filter(|n| range.contains(n));
                let n = n.ok_or_else(|| format!("expected a whole number from {low} to {high}"))?;
                value.store(n, Ordering::Relaxed);
                Ok(())
            },
        )
    }

    /// A writable whole number that is a multiple of `unit`.
    pub fn atomic_multiple(value: Arc<AtomicU64>, range: RangeInclusive<u64>, unit: u64) -> Param {
        let shown = value.clone();
        Param::read_write(
            move || Value::Gauge(shown.load(Ordering::Relaxed)),
            move |text| {
                let (low, high) = (range.start(), range.end());
                let is_valid = |n: &u64| range.contains(n) && n.is_multiple_of(unit);
                let n = text.trim().parse::<u64>().ok().filter(is_valid);
                let n = n.ok_or_else(|| format!("expected a multiple of {unit} from {low} to {high}"))?;
                value.store(n, Ordering::Relaxed);
                Ok(())
            },
        )
    }

    /// A writable switch, shown as 0 or 1 (the format of most of Lustre's switches).
    pub fn switch(value: Arc<AtomicBool>) -> Param {
        Param::switch_shown(value, ["0", "1"])
    }

    /// A writable switch, shown as OFF or ON (the format of some of Lustre's switches).
    pub fn on_off(value: Arc<AtomicBool>) -> Param {
        Param::switch_shown(value, ["OFF", "ON"])
    }

    fn switch_shown(value: Arc<AtomicBool>, [off, on]: [&'static str; 2]) -> Param {
        let shown = value.clone();
        Param::read_write(
            move || if shown.load(Ordering::Relaxed) { on } else { off }.to_owned(),
            move |text| {
                let enabled = match text.trim().to_ascii_lowercase().as_str() {
                    "1" | "on" | "y" | "yes" | "true" => true,
                    "0" | "off" | "n" | "no" | "false" => false,
                    _ => return Err(format!("expected {off} or {on}")),
                };
                value.store(enabled, Ordering::Relaxed);
                Ok(())
            },
        )
    }

    /// The same parameter with a callback that runs after each successful set. Has no effect on a
    /// read-only parameter.
    pub fn when_set(self, then: impl Fn() + Send + Sync + 'static) -> Param {
        let set = self.set.map(|set| -> Arc<Set> {
            Arc::new(move |text| {
                set(text)?;
                then();
                Ok(())
            })
        });
        Param { set, ..self }
    }

    /// The same parameter with one line of documentation, for lists of parameters.
    pub fn about(self, about: &'static str) -> Param {
        Param { about, ..self }
    }

    /// The same read-only parameter. An attempt to set it fails with the advice `instead`.
    pub fn instead(self, instead: &'static str) -> Param {
        Param { instead, ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_outside_its_range_is_refused_and_changes_nothing() {
        let value = Arc::new(AtomicU64::new(8));
        let p = Param::atomic(value.clone(), 1..=256);
        let set = p.set.clone().unwrap();
        assert_eq!(set("0"), Err("expected a whole number from 1 to 256".to_owned()));
        assert!(set("many").is_err());
        assert_eq!(value.load(Ordering::Relaxed), 8);
        set(" 16\n").unwrap();
        assert_eq!((p.show)().to_string(), "16");
    }

    #[test]
    fn the_callback_runs_only_after_a_successful_set() {
        let value = Arc::new(AtomicU64::new(1));
        let seen = Arc::new(AtomicU64::new(0));
        let (from, to) = (value.clone(), seen.clone());
        let p = Param::atomic(value, 1..=9)
            .when_set(move || to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        let set = p.set.clone().unwrap();
        assert!(set("10").is_err());
        assert_eq!(seen.load(Ordering::Relaxed), 0);
        set("7").unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn switches_show_their_form_and_accept_digits_and_words() {
        type Make = fn(Arc<AtomicBool>) -> Param;
        for (make, off, on) in [
            (Param::switch as Make, "0", "1"),
            (Param::on_off as Make, "OFF", "ON"),
        ] {
            let p = make(Arc::new(AtomicBool::new(true)));
            let set = p.set.clone().unwrap();
            assert_eq!((p.show)().to_string(), on);
            set("off").unwrap();
            assert_eq!((p.show)().to_string(), off);
            set("1").unwrap();
            set(" OFF\n").unwrap();
            assert_eq!((p.show)().to_string(), off);
            assert_eq!(set("perhaps"), Err(format!("expected {off} or {on}")));
        }
    }
}
