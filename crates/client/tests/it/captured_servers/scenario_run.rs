//! The run of a scenario: the simulated servers, a mount of our client, and helpers.

use crate::captured_servers::compare::Counts;
use crate::captured_servers::library::Library;
use crate::captured_servers::server::SimulatedServers;
use bytes::Bytes;
use client::{Client, Cred, FoundFile, MountOptions, OpenFile, OpenFlags};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, PortalGuard};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::node::{Node, NodeConfig, RandomSource};
use wire::{Errno, Fid, Nid, Time};

/// A mount of our client on simulated servers.
pub struct ScenarioRun {
    pub server: Arc<SimulatedServers>,
    pub client: Arc<Client>,
    pub cred: Cred,
    pub params: params::Registry,
    node: Arc<Node>,
    _portals: Vec<PortalGuard>,
}

/// The exchanges of the client `10.88.0.21@tcp` with one of the two captured file systems: the one
/// with a single server, or the other.
pub fn library(single_server: bool) -> &'static Library {
    static LIBRARIES: [OnceLock<Library>; 2] = [OnceLock::new(), OnceLock::new()];
    let client = "10.88.0.21@tcp".parse::<Nid>().unwrap();
    LIBRARIES[usize::from(single_server)].get_or_init(|| Library::read(client, single_server))
}

impl ScenarioRun {
    /// Mounts for the scenario of `capture`. The servers answer the mount from the capture of a
    /// mount.
    pub async fn mount(capture: &str) -> ScenarioRun {
        let single_server = capture.starts_with('z');
        let library = library(single_server);
        let mount_capture = if single_server {
            "z1_mount_single_server"
        } else {
            "b1_client_mount"
        };
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        let (server, portals) = SimulatedServers::start(&lnet, library);
        {
            let mut state = server.state.lock();
            state.capture = mount_capture.to_owned();
            state.comparing = capture == mount_capture;
        }
        // The client's handles begin at the seed, which occurs nowhere else in a message.
        let seed = 0x6e61_6372_6500_0001_u64.to_le_bytes();
        let random = RandomSource::new(move |bytes| {
            bytes.copy_from_slice(&seed);
            Ok(())
        });
        let config = NodeConfig {
            follow_mgs_params: false,
            ..NodeConfig::new(random)
        };
        let node = Node::start(lnet, config).unwrap();
        let mut options = MountOptions::new(vec![Nid::LO], "testfs", 7);
        let now = Time::new(library.begin_us(capture) as i64 / 1_000_000, 0);
        options.clock = Arc::new(move || now);
        let params = options.params.clone();
        let client = node.mount(options).await;
        let client = client.unwrap_or_else(|e| panic!("{e}: {:#?}", server.state.lock().failures));
        // Connects in the background belong to the capture of the mount, not to `capture`.
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.state.lock().capture = capture.to_owned();
        ScenarioRun {
            server,
            client,
            cred: Cred {
                umask: 0o022,
                ..Cred::root()
            },
            params,
            node,
            _portals: portals,
        }
    }

    /// Sets whether requests are compared with captured ones.
    pub fn set_comparing(&self, comparing: bool) {
        self.server.state.lock().comparing = comparing;
    }

    /// Unmounts and returns the results. Fails if the servers lacked an answer.
    pub async fn end(&self) -> Counts {
        self.set_comparing(false);
        self.node.stop().await.unwrap();
        let mut state = self.server.state.lock();
        assert!(state.failures.is_empty(), "{:#?}", state.failures);
        std::mem::take(&mut state.counts)
    }

    /// The file of a path from the root.
    pub async fn walk(&self, path: &str) -> Result<FoundFile, Errno> {
        let mut dir = self.client.root();
        let mut found = None;
        for name in path.split('/') {
            let next = self.client.lookup(&self.cred, dir, name.as_bytes()).await?;
            dir = next.attr.fid;
            found = Some(next);
        }
        found.ok_or(Errno::ENOENT)
    }

    /// The FID of a path.
    pub async fn fid(&self, path: &str) -> Fid {
        self.walk(path)
            .await
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .attr
            .fid
    }

    /// Opens the file at a path.
    pub async fn open(&self, path: &str, flags: OpenFlags) -> Arc<OpenFile> {
        let fid = self.fid(path).await;
        self.client.open(&self.cred, fid, flags).await.unwrap()
    }

    /// Creates the file `name` in `parent`, as a shell's redirection does.
    pub async fn create(&self, parent: Fid, name: &str) -> Arc<OpenFile> {
        let flags = OpenFlags {
            write: true,
            truncate: true,
            ..OpenFlags::default()
        };
        let created = self
            .client
            .create(&self.cred, parent, name.as_bytes(), 0o666, flags)
            .await;
        created.unwrap().1
    }

    /// The first `len` bytes of a file, or all if it has fewer.
    pub async fn read(&self, file: &OpenFile, len: usize) -> Vec<u8> {
        self.client.read(file, 0, len).await.unwrap().concat()
    }

    pub async fn write(&self, file: &OpenFile, offset: u64, data: &[u8]) {
        let written = self
            .client
            .write(file, offset, Bytes::copy_from_slice(data))
            .await;
        assert_eq!(written, Ok(data.len()));
    }

    /// Cancels the unused locks, and so empties the caches.
    pub async fn drop_caches(&self) {
        self.params.set("ldlm.namespaces.*.lru_size", "clear").unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// Sends the capture's callbacks for locks that our client holds, in order. In the capture,
    /// operations of other clients caused these callbacks.
    pub async fn send_callbacks_of_others(&self) {
        let capture = self.server.state.lock().capture.clone();
        let library = self.server.library;
        let mut sent = 0;
        for callback in library.callbacks.iter().filter(|c| *c.capture == *capture) {
            if self.server.send_captured_callback(callback).await.is_some() {
                sent += 1;
                if callback.request.body.pb_opc == wire::LDLM_BL_CALLBACK {
                    self.server.wait_for_cancel(callback).await;
                }
            }
        }
        assert!(sent > 0, "no callback was for our client");
    }
}
