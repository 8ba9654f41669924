//! Parses the mount options of a program: `listen=NID,port=N,threads=N,noatime` and so on.

use client::Atime;
use lnet::endpoint::EndpointRequest;

/// The default number of threads for network and caches is the number of CPUs, but at most this.
const THREADS_DEFAULT_MAX: usize = 4;
/// Largest number of threads.
const THREADS_MAX: usize = 1024;

/// The mount options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address of this client.
    pub endpoint: EndpointRequest,
    /// Number of threads for network and caches.
    pub threads: usize,
    /// Which reads change access times.
    pub atime: Atime,
    /// Whether `atime` applies to directories too.
    pub diratime: bool,
    /// `jobid_var`, the source of the job's name; `None`: requests carry none.
    pub jobid_var: Option<String>,
    /// `jobid_name`, the pattern of the job's name.
    pub jobid_name: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            endpoint: EndpointRequest::default(),
            threads: cpus.min(THREADS_DEFAULT_MAX),
            atime: Atime::default(),
            diratime: true,
            jobid_var: None,
            jobid_name: None,
        }
    }
}

impl Options {
    /// Parses options such as `port=988,noatime`.
    ///
    /// # Errors
    ///
    /// A message that names the invalid option and gives the reason.
    pub fn parse(text: &str) -> Result<Options, String> {
        let mut options = Options::default();
        for word in text.split(',').filter(|w| !w.is_empty()) {
            options
                .set(word)
                .map_err(|reason| format!("option '{word}': {reason}"))?;
        }
        Ok(options)
    }

    /// Sets an option, such as `port=988` or `noatime`.
    fn set(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=') {
            Some(("listen", nid)) => self.endpoint.listen = Some(nid.parse().map_err(|e| format!("{e}"))?),
            Some(("port", port)) => {
                self.endpoint.port = Some(parse_number(port, 1..=u16::MAX.into())? as u16)
            }
            Some(("threads", threads)) => self.threads = parse_number(threads, 1..=THREADS_MAX)?,
            Some(("jobid_var", source)) => self.jobid_var = Some(source.to_owned()),
            Some(("jobid_name", pattern)) => self.jobid_name = Some(pattern.to_owned()),
            None if word == "diratime" => self.diratime = true,
            None if word == "nodiratime" => self.diratime = false,
            _ => {
                self.atime = Atime::from_option(word).ok_or(
                    "unknown; use listen=NID, port=N, threads=N, jobid_var=SOURCE, jobid_name=PATTERN, \
                     relatime, strictatime, noatime, diratime or nodiratime",
                )?;
            }
        }
        Ok(())
    }
}

/// Parses a number within a range.
fn parse_number(text: &str, within: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| within.contains(n));
    number.ok_or_else(|| format!("must be a number from {} to {}", within.start(), within.end()))
}
