//! The registry: a map from names to parameters, with patterns for reading and setting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::{Param, ParamError, Value, glob};

/// The description of a parameter, or of a level of names above parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// The full name.
    pub name: String,
    /// Whether this is a level of names with parameters below it.
    pub is_level: bool,
    /// Whether the parameter can be set; `false` for a level.
    pub writable: bool,
    /// One line of documentation; empty for a level.
    pub about: &'static str,
}

/// A registered parameter.
struct Entry {
    /// The number of the registration; distinguishes successive parameters of one name.
    id: u64,
    components: Vec<String>,
    param: Param,
}

#[derive(Default)]
struct Inner {
    entries: RwLock<BTreeMap<String, Entry>>,
    /// Patterns and values to set on parameters when they are registered. The last matching pattern
    /// counts.
    kept_values: RwLock<Vec<(Vec<String>, String)>>,
    next_id: AtomicU64,
}

/// All parameters of a process. Clones share the same registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Inner>);

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// Keeps a name in the registry; dropping it removes the name.
#[must_use = "the parameter is unregistered when this is dropped"]
pub struct ParamGuard {
    registry: Registry,
    name: String,
    id: u64,
}

impl Drop for ParamGuard {
    fn drop(&mut self) {
        let mut entries = self.registry.0.entries.write();
        // The name may belong to a later registration by now: a target may restart before its old
        // parameters are dropped.
        if entries.get(&self.name).is_some_and(|e| e.id == self.id) {
            entries.remove(&self.name);
        }
    }
}

/// Parameters with a common prefix; dropping the group removes them all.
pub struct Group {
    registry: Registry,
    prefix: String,
    guards: Vec<ParamGuard>,
}

impl Group {
    /// Registers `<prefix>.<name>`.
    pub fn add(&mut self, name: &str, param: Param) -> &mut Group {
        self.guards
            .push(self.registry.register(format!("{}.{name}", self.prefix), param));
        self
    }
}

impl Registry {
    /// Registers a parameter, after setting the value that [`Registry::keep`] has for its name.
    /// Replaces an existing parameter of the same name.
    pub fn register(&self, name: impl Into<String>, param: Param) -> ParamGuard {
        let name = name.into();
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let components = glob::components(&name);
        let kept = self
            .0
            .kept_values
            .read()
            .iter()
            .rfind(|(p, _)| glob::matches(p, &components))
            .map(|(_, v)| v.clone());
        if let (Some(value), Some(set)) = (kept, &param.set) {
            // A parameter that refuses the kept value stays unchanged. Ignore the error: the caller
            // cannot correct the kept value.
            let _ = set(&value);
        }
        let entry = Entry {
            id,
            components,
            param,
        };
        self.0.entries.write().insert(name.clone(), entry);
        ParamGuard {
            registry: self.clone(),
            name,
            id,
        }
    }

    /// Creates an empty group of parameters below `prefix`.
    pub fn group(&self, prefix: impl Into<String>) -> Group {
        Group {
            registry: self.clone(),
            prefix: prefix.into(),
            guards: Vec::new(),
        }
    }

    /// Sets these values (pairs of pattern and value) on all matching registered parameters, and on
    /// each matching parameter that is registered later. Replaces the list of an earlier call.
    /// Returns at most one error for each pattern: a registered parameter is read-only or refuses
    /// the value. A pattern without a match is no error.
    pub fn keep(&self, values: &[(String, String)]) -> Vec<ParamError> {
        let kept = values
            .iter()
            .map(|(p, v)| (glob::components(p), v.clone()))
            .collect();
        *self.0.kept_values.write() = kept;
        let set = values.iter().map(|(pattern, value)| self.set(pattern, value));
        set.filter_map(Result::err)
            .filter(|e| !matches!(e, ParamError::NotFound { .. }))
            .collect()
    }

    /// Describes the parameters and levels that the pattern matches, sorted by name. With
    /// `recursive`, also all levels and parameters below the matching levels.
    pub fn list(&self, pattern: &str, recursive: bool) -> Vec<ParamInfo> {
        let pattern = glob::components(pattern);
        let entries = self.0.entries.read();
        let mut found = BTreeMap::new();
        for entry in entries.values() {
            let parts = &entry.components;
            if parts.len() < pattern.len() || !glob::matches(&pattern, &parts[..pattern.len()]) {
                continue;
            }
            let depth_max = if recursive { parts.len() } else { pattern.len() };
            for depth in pattern.len()..=depth_max {
                let (name, is_level) = (parts[..depth].join("."), depth < parts.len());
                let (writable, about) = if is_level {
                    (false, "")
                } else {
                    (entry.param.set.is_some(), entry.param.about)
                };
                found.insert(
                    name.clone(),
                    ParamInfo {
                        name,
                        is_level,
                        writable,
                        about,
                    },
                );
            }
        }
        found.into_values().collect()
    }

    /// Names and values, in Lustre's text, of the parameters that the pattern matches.
    pub fn get(&self, pattern: &str) -> Vec<(String, String)> {
        self.values(pattern)
            .into_iter()
            .map(|(name, value)| (name, value.to_string()))
            .collect()
    }

    /// Names and values of the parameters that the pattern matches.
    pub fn values(&self, pattern: &str) -> Vec<(String, Value)> {
        self.values_where(pattern, |_| true)
    }

    /// Like [`Registry::values`], but reads only the parameters with names that pass the filter.
    pub fn values_where(&self, pattern: &str, passes: impl Fn(&str) -> bool) -> Vec<(String, Value)> {
        self.find_matching(pattern)
            .into_iter()
            .filter(|(name, _)| passes(name))
            .map(|(name, p)| (name, (p.show)()))
            .collect()
    }

    /// Sets all parameters that the pattern matches and returns their new values. If one of them is
    /// read-only, changes none.
    ///
    /// # Errors
    ///
    /// The pattern matches nothing, a matching parameter is read-only, or one refuses the value
    /// (parameters before it stay changed).
    pub fn set(&self, pattern: &str, value: &str) -> Result<Vec<(String, String)>, ParamError> {
        let found = self.find_matching(pattern);
        if found.is_empty() {
            return Err(ParamError::NotFound {
                pattern: pattern.to_owned(),
            });
        }
        let mut setters = Vec::with_capacity(found.len());
        for (name, param) in found {
            let set = param.set.clone().ok_or_else(|| ParamError::ReadOnly {
                name: name.clone(),
                instead: param.instead,
            })?;
            setters.push((name, param, set));
        }
        let mut out = Vec::with_capacity(setters.len());
        for (name, param, set) in setters {
            set(value).map_err(|why| ParamError::Invalid {
                name: name.clone(),
                value: value.to_owned(),
                why,
            })?;
            out.push((name, (param.show)().to_string()));
        }
        Ok(out)
    }

    fn find_matching(&self, pattern: &str) -> Vec<(String, Param)> {
        let pattern = glob::components(pattern);
        let entries = self.0.entries.read();
        let matched = entries
            .iter()
            .filter(|(_, e)| glob::matches(&pattern, &e.components));
        matched.map(|(name, e)| (name.clone(), e.param.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn number(value: u64) -> Param {
        Param::atomic(Arc::new(AtomicU64::new(value)), 0..=100)
    }

    #[test]
    fn a_pattern_reads_and_sets_all_matching_parameters() {
        let registry = Registry::default();
        let mut osc = registry.group("osc.fs-OST0000-osc-1");
        osc.add("max_dirty_mb", number(32))
            .add("max_rpcs_in_flight", number(8));
        let _other = registry.register("osc.fs-OST0001-osc-1.max_dirty_mb", number(16));

        let values: Vec<String> = registry
            .get("osc.*.max_dirty_mb")
            .into_iter()
            .map(|(_, v)| v)
            .collect();
        assert_eq!(values, ["32", "16"]);
        let set = registry.set("osc.*.max_dirty_mb", "64").unwrap();
        assert_eq!(set.len(), 2);
        assert!(set.iter().all(|(_, v)| v == "64"));
    }

    #[test]
    fn dropping_a_replaced_guard_keeps_the_name() {
        let registry = Registry::default();
        let first = registry.register("a.b", number(1));
        let second = registry.register("a.b", number(2));
        drop(first);
        assert_eq!(registry.get("a.b"), [("a.b".to_owned(), "2".to_owned())]);
        drop(second);
        assert!(registry.list("*", true).is_empty());
    }

    #[test]
    fn set_refuses_unknown_and_read_only_names() {
        let registry = Registry::default();
        let _shown = registry.register(
            "a.version",
            Param::read_only(|| "1".to_owned())
                .about("the version")
                .instead("install another one"),
        );
        assert_eq!(
            registry.set("x", "1"),
            Err(ParamError::NotFound {
                pattern: "x".to_owned()
            })
        );
        assert_eq!(
            registry.set("a.*", "1"),
            Err(ParamError::ReadOnly {
                name: "a.version".to_owned(),
                instead: "install another one",
            })
        );
        let info = registry.list("a.version", false);
        assert_eq!((info[0].writable, info[0].about), (false, "the version"));
    }

    #[test]
    fn list_shows_levels_and_if_recursive_their_contents() {
        let registry = Registry::default();
        let mut osc = registry.group("osc.fs-OST0000-osc-1");
        osc.add("max_dirty_mb", number(32))
            .add("stats", Param::read_only(String::new));
        let show = |pattern, recursive| -> Vec<String> {
            let mark = |i: &ParamInfo| match (i.is_level, i.writable) {
                (true, _) => "/",
                (false, true) => "=",
                (false, false) => "",
            };
            registry
                .list(pattern, recursive)
                .iter()
                .map(|i| format!("{}{}", i.name, mark(i)))
                .collect()
        };
        assert_eq!(show("osc.*", false), ["osc.fs-OST0000-osc-1/"]);
        assert_eq!(show("*", true).len(), 4);
        assert_eq!(
            show("osc.*.*", false),
            ["osc.fs-OST0000-osc-1.max_dirty_mb=", "osc.fs-OST0000-osc-1.stats"]
        );
    }

    #[test]
    fn kept_values_apply_to_present_and_future_parameters() {
        let registry = Registry::default();
        let _first = registry.register("osc.a.max_dirty_mb", number(32));
        let keep = |value: &str| registry.keep(&[("osc.*.max_dirty_mb".to_owned(), value.to_owned())]);
        assert!(keep("64").is_empty());
        let _second = registry.register("osc.b.max_dirty_mb", number(32));
        let values: Vec<String> = registry.get("osc.*.*").into_iter().map(|(_, v)| v).collect();
        assert_eq!(values, ["64", "64"]);
        assert_eq!(keep("1000").len(), 1, "refused: out of range");
    }

    #[test]
    fn set_changes_nothing_if_one_match_is_read_only() {
        let registry = Registry::default();
        let _number = registry.register("a.a", number(1));
        let _shown = registry.register("a.b", Param::read_only(String::new));
        assert!(registry.set("a.*", "2").is_err());
        assert_eq!(registry.get("a.a")[0].1, "1");
    }
}
