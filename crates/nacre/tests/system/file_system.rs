//! A file system under test. Tests use it in the same way, whether its parts run in one process or
//! in four.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::fixture::{Site, nacre, nacre_ok, nacre_refuses, sh};

/// Distribution of the parts over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `nacre up`.
    OneProcess,
    /// MGS, MDT, OST and client, connected over TCP.
    FourProcesses,
}

/// Addresses and a port that no other test uses, not even in a concurrent run.
pub(crate) struct Addresses {
    net: String,
    /// Port of all nodes.
    pub(crate) port: String,
}

impl Addresses {
    pub(crate) fn new() -> Addresses {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let (run, test) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Addresses {
            net: format!("127.{}.{test}", 16 + run % 96),
            port: (20_000 + run % 10_000).to_string(),
        }
    }

    /// NID of a node.
    pub(crate) fn nid(&self, host: u8) -> String {
        format!("{}.{host}@tcp", self.net)
    }

    /// The source for mounts.
    pub(crate) fn source(&self) -> String {
        format!("{}:/lus", self.nid(1))
    }
}

/// Host numbers of the MGS, the first MDT, the first OST and the first client.
const MGS: u8 = 1;
const MDT: u8 = 2;
const OST: u8 = 3;
const CLIENT: u8 = 4;

/// A file system with a mount.
pub(crate) struct FileSystem {
    pub(crate) site: Site,
    pub(crate) addresses: Addresses,
    shape: Shape,
    /// The value of `--store` for [`Shape::OneProcess`].
    store: &'static str,
}

impl FileSystem {
    /// Creates, starts and mounts a file system on the disk.
    pub(crate) fn new(shape: Shape) -> FileSystem {
        FileSystem::on(shape, "local")
    }

    /// Like [`FileSystem::new`], in one process with stores in memory, for tests with thousands of
    /// syncs.
    pub(crate) fn in_memory() -> FileSystem {
        FileSystem::on(Shape::OneProcess, "memory")
    }

    fn on(shape: Shape, store: &'static str) -> FileSystem {
        let mut system = FileSystem {
            site: Site::new(),
            addresses: Addresses::new(),
            shape,
            store,
        };
        system.start();
        system
    }

    /// Starts and mounts the file system, for the first time or after a stop or a kill.
    pub(crate) fn start(&mut self) {
        match self.shape {
            Shape::OneProcess => {
                let nid = self.addresses.nid(MGS);
                let net = ["--listen", &nid, "--port", &self.addresses.port];
                let options = ["--osts", "2", "--fsname", "lus", "--store", self.store];
                self.site.up("d", &[&net[..], &options].concat());
            }
            Shape::FourProcesses => {
                ["mgs", "mdt", "ost"]
                    .iter()
                    .for_each(|name| self.start_server(name));
                self.add_mount("mnt", CLIENT);
            }
        }
    }

    /// Starts or restarts one of the servers of four processes.
    pub(crate) fn start_server(&mut self, name: &str) {
        let mgs = self.addresses.nid(MGS);
        let target_options = ["--fsname", "lus", "--index", "0", "--mgsnode", &mgs];
        match name {
            "mgs" => self.serve(name, MGS, &["--mgs"]),
            "mdt" => self.serve(name, MDT, &[&["--mdt"], &target_options[..]].concat()),
            _ => self.serve(name, OST, &[&["--ost"], &target_options[..]].concat()),
        }
    }

    /// Creates and starts, or restarts, another OST on a new host.
    pub(crate) fn start_second_ost(&mut self, name: &str, host: u8) {
        let mgs = self.addresses.nid(MGS);
        let mkfs = ["--ost", "--fsname", "lus", "--index", "1", "--mgsnode", &mgs];
        self.serve(name, host, &mkfs);
    }

    /// Mounts the file system again, through a new process; returns the mount point.
    pub(crate) fn add_mount(&mut self, name: &str, host: u8) -> PathBuf {
        self.add_mount_with(name, host, "defaults")
    }

    /// Like [`FileSystem::add_mount`], with mount options.
    pub(crate) fn add_mount_with(&mut self, name: &str, host: u8, options: &str) -> PathBuf {
        let source = self.addresses.source();
        self.add_mount_of(&source, name, host, options)
    }

    /// Mounts a subdirectory.
    pub(crate) fn add_subdir_mount(&mut self, subdir: &str, name: &str, host: u8) -> PathBuf {
        let source = format!("{}/{subdir}", self.addresses.source());
        self.add_mount_of(&source, name, host, "defaults")
    }

    fn add_mount_of(&mut self, source: &str, name: &str, host: u8, options: &str) -> PathBuf {
        let nid = self.addresses.nid(host);
        let how = ["-o", options, "--listen", &nid, "--port", &self.addresses.port];
        self.site.mount(source, name, &how).into()
    }

    /// The error of mounting a subdirectory.
    pub(crate) fn subdir_mount_error(&mut self, subdir: &str, host: u8) -> String {
        let source = format!("{}/{subdir}", self.addresses.source());
        let (nid, at) = (self.addresses.nid(host), self.site.mount_point("refused"));
        let port = self.addresses.port.clone();
        nacre_refuses(&["mount", &source, &at, "--listen", &nid, "--port", &port])
    }

    fn serve(&mut self, name: &str, host: u8, mkfs: &[&str]) {
        let nid = self.addresses.nid(host);
        let net = ["--listen", &nid, "--port", &self.addresses.port];
        self.site.serve(name, mkfs, &net);
    }

    /// The mount point.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.site.path(match self.shape {
            Shape::OneProcess => "d/mnt",
            Shape::FourProcesses => "mnt",
        })
    }

    fn dirs(&self) -> &[&str] {
        match self.shape {
            Shape::OneProcess => &["d"],
            Shape::FourProcesses => &["ost", "mdt", "mgs"],
        }
    }

    /// Fails if a check of the stopped file system finds an error.
    pub(crate) fn check_consistency(&self) {
        let dirs: Vec<String> = self.dirs().iter().map(|dir| self.site.path_str(dir)).collect();
        let mut fsck = vec!["fsck"];
        fsck.extend(dirs.iter().map(String::as_str));
        let result = nacre(&fsck);
        assert!(result.ok, "{}{}", result.out, result.err);
    }

    /// Stops all processes.
    pub(crate) fn stop(&self) {
        if self.shape == Shape::FourProcesses {
            nacre_ok(&["umount", text(&self.mount_point())]);
        }
        self.stop_servers();
    }

    /// Stops everything except mounts in separate processes.
    pub(crate) fn stop_servers(&self) {
        self.dirs().iter().for_each(|dir| self.site.down(dir));
    }

    /// Kills all processes without waiting for their exit, and detaches the mount of a separate
    /// client process.
    pub(crate) fn kill(&self) {
        let mut pids: Vec<String> = self
            .dirs()
            .iter()
            .map(|dir| self.site.pid_in(dir).to_string())
            .collect();
        if self.shape == Shape::FourProcesses {
            pids.push(pid_of_mount(&self.mount_point()).to_string());
        }
        sh(&format!("kill -9 {}", pids.join(" ")));
        if self.shape == Shape::FourProcesses {
            nacre_ok(&["umount", text(&self.mount_point())]);
        }
    }
}

/// The process of a mount that `nacre mount` created.
pub(crate) fn pid_of_mount(at: &Path) -> u64 {
    record_of_mount(at)["pid"].as_u64().unwrap()
}

/// The published record of the process of a mount that `nacre mount` created.
pub(crate) fn record_of_mount(at: &Path) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_str(&nacre_ok(&["status", "--json"])).unwrap();
    all.as_array()
        .unwrap()
        .iter()
        .map(|process| &process["record"])
        .find(|record| record["mounts"][0]["mountpoint"] == text(at))
        .unwrap()
        .clone()
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
