//! Names of jobs, which requests carry for the servers' statistics and rules: `jobid_var` and
//! `jobid_name`, as in Lustre.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use params::{Param, ParamGuard, Registry};
use parking_lot::{Mutex, RwLock};
use rpc::job::JobId;

use crate::process;

/// Default of `jobid_name`: the program's name and the user.
const DEFAULT_NAME: &str = "%e.%u";
/// Longest `jobid_name` and longest name of an environment variable.
const TEXT_MAX: usize = 255;
/// How long the client uses a variable read from a process's environment, as in Lustre.
const ENVIRONMENT_TTL: Duration = Duration::from_secs(30);
/// Largest number of processes with a cached variable, and of sessions with a name.
const PROCESSES_MAX: usize = 4096;

/// The caller of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Id of the thread; 0 if unknown.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The source of jobs' names: `jobid_var`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// Requests carry no name.
    Disabled,
    /// `jobid_name`, for a node that works for one job.
    NodeLocal,
    /// The program's name and the user.
    ProgramAndUser,
    /// The name that was set for the caller's session.
    Session,
    /// An environment variable of the caller.
    Variable(String),
}

impl Source {
    fn parse(text: &str) -> Result<Source, String> {
        Ok(match text {
            "disable" => Source::Disabled,
            "nodelocal" => Source::NodeLocal,
            "procname_uid" => Source::ProgramAndUser,
            "session" => Source::Session,
            name if is_variable(name) => Source::Variable(name.to_owned()),
            _ => {
                return Err(
                    "expected disable, nodelocal, procname_uid, session, or an environment variable"
                        .to_owned(),
                );
            }
        })
    }

    fn as_str(&self) -> &str {
        match self {
            Source::Disabled => "disable",
            Source::NodeLocal => "nodelocal",
            Source::ProgramAndUser => "procname_uid",
            Source::Session => "session",
            Source::Variable(name) => name,
        }
    }
}

/// Whether a text can be the name of an environment variable.
fn is_variable(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.len() <= TEXT_MAX && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[derive(Debug)]
struct Settings {
    source: Source,
    /// `jobid_name`: a pattern of names.
    name: String,
}

/// Determines the name of each caller's job, for all callers of a node.
#[derive(Debug)]
pub struct JobIds {
    /// Whether requests carry names. If not, [`JobIds::job_of`] checks nothing else.
    enabled: AtomicBool,
    settings: RwLock<Settings>,
    /// The name of each session that has one, by the session's id.
    sessions: Mutex<HashMap<u32, String>>,
    /// The value of the variable `jobid_var` in each process, by process ID, and when it was read.
    variables: Mutex<HashMap<u32, (Instant, Option<String>)>>,
}

impl Default for JobIds {
    fn default() -> JobIds {
        JobIds {
            enabled: AtomicBool::new(false),
            settings: RwLock::new(Settings {
                source: Source::Disabled,
                name: DEFAULT_NAME.to_owned(),
            }),
            sessions: Mutex::default(),
            variables: Mutex::default(),
        }
    }
}

impl JobIds {
    /// The name of the caller's job; empty if there is none.
    pub fn job_of(&self, caller: Caller) -> JobId {
        if !self.enabled.load(Ordering::Relaxed) {
            return JobId::default();
        }
        let settings = self.settings.read();
        let name = match &settings.source {
            Source::Disabled => String::new(),
            Source::ProgramAndUser => self.expand(DEFAULT_NAME, caller, ""),
            Source::NodeLocal => self.expand(&settings.name, caller, ""),
            Source::Session => process::session(caller.pid)
                .and_then(|id| self.sessions.lock().get(&id).cloned())
                .unwrap_or_default(),
            Source::Variable(variable) => match self.variable(caller.pid, variable) {
                Some(value) if settings.name.contains("%j") => self.expand(&settings.name, caller, &value),
                Some(value) => value,
                None => self.expand(&settings.name, caller, ""),
            },
        };
        JobId::truncated(&name)
    }

    /// Replaces the escapes of `jobid_name`.
    fn expand(&self, pattern: &str, caller: Caller, variable: &str) -> String {
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            match (c, if c == '%' { chars.next() } else { None }) {
                ('%', Some('e')) => out.push_str(&process::name(caller.pid)),
                ('%', Some('g')) => out.push_str(&caller.gid.to_string()),
                ('%', Some('h')) => out.push_str(&host_name()),
                ('%', Some('H')) => out.push_str(host_name().split('.').next().unwrap_or_default()),
                ('%', Some('j')) => out.push_str(variable),
                ('%', Some('p')) => out.push_str(&caller.pid.to_string()),
                ('%', Some('u')) => out.push_str(&caller.uid.to_string()),
                ('%', other) => out.extend(other),
                (c, _) => out.push(c),
            }
        }
        // As in Lustre, a name has no white space.
        out.retain(|c| !c.is_whitespace());
        out
    }

    /// The value of an environment variable of a process.
    fn variable(&self, pid: u32, name: &str) -> Option<String> {
        let now = Instant::now();
        let is_fresh = |read_at: Instant| now.duration_since(read_at) < ENVIRONMENT_TTL;
        let mut known = self.variables.lock();
        if let Some((read_at, value)) = known.get(&pid)
            && is_fresh(*read_at)
        {
            return value.clone();
        }
        if known.len() >= PROCESSES_MAX {
            known.retain(|_, (read_at, _)| is_fresh(*read_at));
        }
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        let value = process::environment_variable(pid, name).filter(|value| !value.is_empty());
        known.insert(pid, (now, value.clone()));
        value
    }

    /// Sets `jobid_var`.
    ///
    /// # Errors
    ///
    /// The reason why the value is invalid.
    pub fn set_var(&self, text: &str) -> Result<(), String> {
        let source = Source::parse(text.trim())?;
        self.enabled.store(source != Source::Disabled, Ordering::Relaxed);
        self.settings.write().source = source;
        self.variables.lock().clear();
        Ok(())
    }

    /// Sets `jobid_name`.
    ///
    /// # Errors
    ///
    /// The reason why the value is invalid.
    pub fn set_name(&self, text: &str) -> Result<(), String> {
        let name = text.trim();
        if name.is_empty() || name.len() > TEXT_MAX {
            return Err(format!(
                "expected a pattern of 1 to {TEXT_MAX} bytes, such as {DEFAULT_NAME}"
            ));
        }
        name.clone_into(&mut self.settings.write().name);
        Ok(())
    }

    /// Sets a session's name: `SESSION NAME`, or only `SESSION` to remove the name.
    fn set_session(&self, text: &str) -> Result<(), String> {
        let (session, name) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let session: u32 = session
            .parse()
            .map_err(|_| "expected the session's id and the name of its job".to_owned())?;
        let mut sessions = self.sessions.lock();
        match name.trim() {
            "" => drop(sessions.remove(&session)),
            _ if sessions.len() >= PROCESSES_MAX => {
                return Err(format!("at most {PROCESSES_MAX} sessions can have a name"));
            }
            name => drop(sessions.insert(session, name.to_owned())),
        }
        Ok(())
    }

    fn show_sessions(&self) -> String {
        let mut sessions: Vec<String> = self
            .sessions
            .lock()
            .iter()
            .map(|(session, name)| format!("{session} {name}\n"))
            .collect();
        sessions.sort();
        sessions.concat()
    }

    /// Registers the parameters until the group is dropped.
    pub fn register_params(self: &Arc<Self>, registry: &Registry) -> Vec<ParamGuard> {
        let param = |show: fn(&JobIds) -> String, set: fn(&JobIds, &str) -> Result<(), String>| {
            let (shown, changed) = (self.clone(), self.clone());
            Param::read_write(move || show(&shown), move |text| set(&changed, text))
        };
        vec![
            registry.register(
                "jobid_var",
                param(|j| j.settings.read().source.as_str().to_owned(), JobIds::set_var).about(
                    "source of the jobs' names that requests carry: disable, procname_uid, nodelocal, session, or an environment variable such as SLURM_JOB_ID",
                ),
            ),
            registry.register(
                "jobid_name",
                param(|j| j.settings.read().name.clone(), JobIds::set_name).about(
                    "pattern of jobs' names: %e program, %g group, %h host, %H short host name, %j variable, %p process, %u user",
                ),
            ),
            registry.register(
                "jobid_this_session",
                param(JobIds::show_sessions, JobIds::set_session)
                    .about("name of the job of a session, with jobid_var=session: the session's id and the name"),
            ),
        ]
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Caller, JobIds};
    use params::Registry;
    use std::sync::Arc;

    /// The job of this process after these parameters are set.
    fn job(settings: &[(&str, &str)]) -> String {
        let (jobs, registry) = (Arc::<JobIds>::default(), Registry::default());
        let _params = jobs.register_params(&registry);
        for (name, value) in settings {
            registry.set(name, value).unwrap();
        }
        let caller = Caller {
            pid: std::process::id(),
            uid: 1000,
            gid: 100,
        };
        jobs.job_of(caller).as_str().to_owned()
    }

    fn program() -> String {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        name.trim().to_owned()
    }

    #[test]
    fn requests_carry_no_name_by_default() {
        assert_eq!(job(&[]), "");
        assert_eq!(job(&[("jobid_var", "nodelocal"), ("jobid_var", "disable")]), "");
    }

    #[test]
    fn name_is_of_the_program_and_user_or_of_the_pattern() {
        assert_eq!(
            job(&[("jobid_var", "procname_uid")]),
            format!("{}.1000", program())
        );
        let pattern = [("jobid_var", "nodelocal"), ("jobid_name", "run %u-%g-%%")];
        assert_eq!(job(&pattern), "run1000-100-%");
        let pid = std::process::id();
        assert_eq!(
            job(&[("jobid_var", "nodelocal"), ("jobid_name", "%p")]),
            pid.to_string()
        );
    }

    #[test]
    fn environment_variable_is_the_name_or_part_of_it() {
        // Cargo sets the variable for the tests' process, before it starts.
        let package = std::env::var("CARGO_PKG_NAME").unwrap();
        let variable = ("jobid_var", "CARGO_PKG_NAME");
        assert_eq!(job(&[variable]), package);
        assert_eq!(
            job(&[variable, ("jobid_name", "%j:%u")]),
            format!("{package}:1000")
        );
        assert_eq!(
            job(&[("jobid_var", "NO_SUCH_VARIABLE"), ("jobid_name", "%u")]),
            "1000"
        );
    }

    #[test]
    fn session_has_the_name_that_was_set_for_it() {
        let session = crate::process::session(std::process::id()).unwrap();
        let set = format!("{session} my.job");
        assert_eq!(job(&[("jobid_var", "session")]), "");
        assert_eq!(
            job(&[("jobid_var", "session"), ("jobid_this_session", &set)]),
            "my.job"
        );
        let removed = session.to_string();
        let settings = [
            ("jobid_var", "session"),
            ("jobid_this_session", set.as_str()),
            ("jobid_this_session", removed.as_str()),
        ];
        assert_eq!(job(&settings), "");
    }

    #[test]
    fn bad_settings_are_refused() {
        let (jobs, registry) = (Arc::<JobIds>::default(), Registry::default());
        let _params = jobs.register_params(&registry);
        assert!(registry.set("jobid_var", "two words").is_err());
        assert!(registry.set("jobid_name", " ").is_err());
        assert!(registry.set("jobid_this_session", "name").is_err());
    }
}
