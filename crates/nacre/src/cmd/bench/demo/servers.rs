//! A server process, such as one with a complete file system in a given configuration; stopped on
//! drop.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::BenchError;
use bench::demo::Configuration;
use lnet::LnetConfig;
use wire::Nid;

use crate::cli::Net;
use crate::cmd::bench::stop_child;
use crate::control::{self, Request};
use crate::instance::Store;
use crate::net::{self, AddressPreference};
use crate::output::errln;
use crate::process::{self, ProcessRecord};

/// Name of each server's file system.
pub(super) const FSNAME: &str = "demo";
/// Time limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(60);
/// Polling interval during the start.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for answers of the server.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Start parameters that assign services to CPU partitions.
const SERVICE_CPT_PARAMS: [&str; 6] = [
    "mds_num_cpts",
    "mds_rdpg_num_cpts",
    "mds_io_num_cpts",
    "oss_cpts",
    "oss_io_cpts",
    "ldlm_cpts",
];

/// A running server.
pub(super) struct Server {
    child: Child,
    dir: PathBuf,
    pub(super) nid: Nid,
    pub(super) port: u16,
}

impl Server {
    /// Starts a server at `nid` in the new directory `dir`, and waits until it is up. The store is
    /// in `dir` or in memory.
    pub(super) fn start(
        dir: &Path,
        nid: Nid,
        configuration: &Configuration,
        (store, osts): (Store, usize),
        stop: &AtomicBool,
    ) -> Result<Server> {
        let (nid, port) = endpoint(nid)?;
        let store = match store {
            Store::Local => "local",
            Store::Memory => "memory",
        };
        let mut command = nacre()?;
        command
            .args(["up", "--no-mount", "--fsname", FSNAME, "--store", store])
            .args(["--osts", &osts.to_string()])
            .arg("--dir")
            .arg(dir)
            .args(start_options(configuration, nid));
        let mut server = Server::spawn(command, dir, (nid, port))?;
        let record = server.wait_until_up(stop)?;
        if !configuration.pdo {
            let request = Request::SetParam {
                pattern: "osd-*.*-MDT*.pdo".to_owned(),
                value: "OFF".to_owned(),
            };
            control::call(&record.control, &request, ANSWER_MAX).context("cannot switch PDO off")?;
        }
        Ok(server)
    }

    /// Starts the process of `command` in the foreground at this address, with its record in `dir`.
    pub(super) fn spawn(mut command: Command, dir: &Path, (nid, port): (Nid, u16)) -> Result<Server> {
        let log_path = dir.with_extension("log");
        let log = File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
        command
            .args(["--foreground", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C must not stop the server before the clients have disconnected from it.
            .process_group(0);
        let child = command.spawn().context("cannot start a server")?;
        Ok(Server {
            child,
            dir: dir.to_owned(),
            nid,
            port,
        })
    }

    /// Waits until the server has published its record. Fails if the server exits, after
    /// [`START_MAX`], or if `stop` is set.
    pub(super) fn wait_until_up(&mut self, stop: &AtomicBool) -> Result<ProcessRecord> {
        let log = self.dir.with_extension("log");
        let start_time = Instant::now();
        loop {
            if let Some(record) = process::in_dir(&self.dir)?.filter(|r| r.pid == self.child.id()) {
                return Ok(record);
            }
            if let Some(status) = self
                .child
                .try_wait()
                .context("cannot check whether a server has exited")?
            {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let last_line = text.lines().last().unwrap_or("no message");
                bail!(
                    "the server at {} exited before it was up ({status}): {last_line}",
                    self.nid
                );
            }
            if start_time.elapsed() > START_MAX {
                bail!(
                    "the server at {} is not up after {} s",
                    self.nid,
                    START_MAX.as_secs()
                );
            }
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted.into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The process id of the server.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop_child(&mut self.child);
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            errln!("cannot remove {}: {e}", self.dir.display());
        }
    }
}

/// A command of this program.
pub(super) fn nacre() -> Result<Command> {
    let binary = std::env::current_exe().context("cannot find the nacre binary")?;
    Ok(Command::new(binary))
}

/// The NID and the port at which a server can listen.
pub(super) fn endpoint(nid: Nid) -> Result<(Nid, u16)> {
    let address = Net {
        listen: Some(nid),
        port: None,
    };
    let found = net::server_endpoint(&address, &LnetConfig::default(), &AddressPreference::default())?;
    Ok((found.nid, found.port))
}

/// The command line options for a configuration.
fn start_options(configuration: &Configuration, nid: Nid) -> Vec<String> {
    let format_range = |cpts: std::ops::Range<usize>| match cpts.end.saturating_sub(1) {
        last if last == cpts.start => format!("[{last}]"),
        last => format!("[{}-{last}]", cpts.start),
    };
    let mut options = vec![
        "--cpu-npartitions".to_owned(),
        configuration.partitions.to_string(),
    ];
    if configuration.forced {
        options.push("--force-partitions".to_owned());
    }
    let services = format_range(configuration.service_cpts());
    let params = [
        format!(
            "networks=tcp({}){}",
            nid.addr(),
            format_range(configuration.lnet_cpts())
        ),
        format!("portal_rotor={}", if configuration.rotor { "ON" } else { "OFF" }),
        "lnet_selftest=1".to_owned(),
    ];
    let params = params
        .into_iter()
        .chain(SERVICE_CPT_PARAMS.map(|name| format!("{name}={services}")));
    options.extend(params.flat_map(|p| ["--param".to_owned(), p]));
    options
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[test]
    fn configuration_becomes_start_options() {
        let configuration = Configuration {
            name: String::new(),
            partitions: 4,
            lnet: 1,
            services: 3,
            rotor: true,
            pdo: true,
            forced: true,
            mdss: 0,
            mdts: 0,
        };
        let options = start_options(&configuration, "127.0.0.9@tcp".parse().unwrap());
        for expected in [
            "--force-partitions",
            "networks=tcp(127.0.0.9)[0]",
            "mds_num_cpts=[1-3]",
            "oss_io_cpts=[1-3]",
            "portal_rotor=ON",
        ] {
            assert!(options.iter().any(|o| o == expected), "{options:?}");
        }
        let line = ["nacre", "up"].map(str::to_owned).into_iter().chain(options);
        let crate::cli::Command::Up(up) = crate::cli::Cli::parse_from(line).command else {
            panic!("another command");
        };
        crate::start::StartConfig::new(&up.start, &[]).unwrap();
    }
}
