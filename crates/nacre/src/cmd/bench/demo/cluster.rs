//! A file system with several metadata servers. Each is a process with a limit of CPU time, so that
//! the servers and not the clients limit the rates; another process has the MGS and the OSTs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use bench::CpuCap;
use wire::Nid;

use super::servers::{FSNAME, Server, endpoint, nacre};

/// The size of a cluster.
pub(super) struct ClusterSize {
    /// Number of metadata servers.
    pub(super) mdss: usize,
    /// Number of MDTs on each metadata server.
    pub(super) mdts_per_mds: usize,
    /// Number of OSTs.
    pub(super) osts: usize,
    /// Number of CPUs that each metadata server may use.
    pub(super) mds_cpus: f64,
}

/// The processes of a cluster, which end on drop.
pub(super) struct Cluster {
    /// The process with the MGS and the OSTs, then the metadata servers.
    servers: Vec<Server>,
    /// The limits of the metadata servers. Dropped after the processes have ended.
    _caps: Vec<CpuCap>,
}

impl Cluster {
    /// Starts a cluster with directories in `dir`, which have names with this prefix, and waits
    /// until it is up. `nids`: one for each process, at least one more than there are metadata
    /// servers.
    pub(super) fn start(
        (dir, prefix): (&Path, &str),
        nids: &[Nid],
        size: &ClusterSize,
        stop: &AtomicBool,
    ) -> Result<Cluster> {
        let Some((mgs, mds_nids)) = nids.split_first() else {
            bail!("a cluster needs an address for each server");
        };
        let (mgs, port) = endpoint(*mgs)?;
        let mgs_node = mgs.to_string();
        let path_of = |name: &str| dir.join(format!("{prefix}-{name}"));
        let format = |role: &str, name: &str, more: &[&str]| {
            let path = path_of(name);
            let mut command = nacre()?;
            command.args(["mkfs", role, "--quiet"]).args(more).arg(&path);
            run(command).with_context(|| format!("cannot create {}", path.display()))
        };
        let target = |role: &str, index: usize, name: &str| {
            let index = index.to_string();
            let options = ["--fsname", FSNAME, "--index", &index, "--mgsnode", &mgs_node];
            format(role, name, &options)
        };
        let server_nids: Vec<String> = mds_nids.iter().map(Nid::to_string).collect();
        format("--mgs", "mgs", &["--server-nids", &server_nids.join(" ")])?;
        let mut oss_targets = vec!["mgs".to_owned()];
        for index in 0..size.osts {
            let name = format!("ost{index:04x}");
            target("--ost", index, &name)?;
            oss_targets.push(name);
        }
        let mut processes = vec![(mgs, oss_targets)];
        for (mds, nid) in mds_nids.iter().take(size.mdss).enumerate() {
            let mut targets = Vec::new();
            // The targets of the first servers have the lowest indices.
            for index in mds * size.mdts_per_mds..(mds + 1) * size.mdts_per_mds {
                let name = format!("mdt{index:04x}");
                target("--mdt", index, &name)?;
                targets.push(name);
            }
            processes.push((*nid, targets));
        }
        let mut servers = Vec::new();
        for (nid, targets) in processes {
            let mut command = nacre()?;
            command.args(["serve", "--cpu-npartitions", "1", "--listen", &nid.to_string()]);
            command.args(targets.iter().map(|name| path_of(name)));
            let record = targets.first().map(|name| path_of(name)).unwrap_or_default();
            servers.push(Server::spawn(command, &record, (nid, port))?);
        }
        for server in &mut servers {
            server.wait_until_up(stop)?;
        }
        let mut caps = Vec::new();
        for server in servers.iter().skip(1) {
            let cap = CpuCap::new(size.mds_cpus)
                .context("cannot limit the CPU time of the metadata servers (run the command as root, where control groups can be created)")?;
            cap.add(server.pid())
                .context("cannot limit the CPU time of a metadata server")?;
            caps.push(cap);
        }
        Ok(Cluster { servers, _caps: caps })
    }

    /// The NID of the MGS, and the port of all servers.
    pub(super) fn mgs(&self) -> Option<(Nid, u16)> {
        self.servers.first().map(|server| (server.nid, server.port))
    }

    /// The process ids of all servers.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(Server::pid).collect()
    }
}

/// Runs a command to its end. The error has the command's message.
fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => bail!("{}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}
