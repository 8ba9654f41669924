//! A node under test: its open portals, its session timer, and its service tasks.

use crate::client::Client;
use crate::framework::Framework;
use crate::inbox::Inbox;
use crate::server::{JoinHandler, Server};
use crate::settings::Settings;
use crate::srpc::Requester;
use lnet::{Lnet, PortalGuard};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::task::AbortHandle;
use wire::{SFW_FRWK_WI_MAX, SFW_TEST_WI_MIN, SRPC_FRAMEWORK_REQUEST_PORTAL, SRPC_REQUEST_PORTAL};

/// Interval of the checks for the session timeout.
const TICK: Duration = Duration::from_secs(1);

/// A node that serves LNet selftest. Dropping it closes its portals and ends its session.
pub struct Node {
    server: Arc<Server>,
    _portals: [PortalGuard; 2],
    tasks: Vec<AbortHandle>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Node {
    /// Opens the portals. Consoles can use the node as soon as this function returns.
    pub fn start(lnet: &Arc<Lnet>, settings: &Settings) -> Node {
        let srpc = Arc::new(Requester::new(lnet.clone()));
        let client = Arc::new(Client {
            srpc: srpc.clone(),
            rpc_timeout: settings.rpc_timeout,
            corrupt_next: AtomicU32::new(settings.brw_inject_errors),
        });
        let server = Arc::new(Server {
            srpc,
            client,
            framework: Mutex::new(Framework::new(settings.session_timeout)),
            console: Mutex::default(),
        });
        let cpts = lnet.cpts();
        let capacity = settings.srv_workitems.max(1);
        let concurrency = (capacity / cpts.len()).max(SFW_TEST_WI_MIN as usize);
        let test_inbox = Inbox::new(cpts.len(), capacity);
        let console_inbox = Inbox::new(1, SFW_FRWK_WI_MAX as usize);
        let portals = [
            lnet.serve_portal(SRPC_REQUEST_PORTAL, test_inbox.clone()),
            lnet.serve_portal(SRPC_FRAMEWORK_REQUEST_PORTAL, console_inbox.clone()),
        ];
        let mut tasks = Vec::new();
        for cpt in cpts.iter() {
            let serving = server
                .clone()
                .serve_all(test_inbox.clone(), cpt.id().0, concurrency);
            tasks.push(cpt.spawn(serving).abort_handle());
        }
        let first_cpt = cpts.get(cpt::CptId(0));
        let serving = server
            .clone()
            .serve_all(console_inbox, 0, SFW_FRWK_WI_MAX as usize);
        tasks.push(first_cpt.spawn(serving).abort_handle());
        tasks.push(first_cpt.spawn(watch_session(server.clone())).abort_handle());
        Node {
            server,
            _portals: portals,
            tasks,
        }
    }

    /// Sets this node's console. The console handles other nodes' requests to join its session.
    /// `None`: this node has no console.
    pub fn set_console(&self, console: Option<Arc<dyn JoinHandler>>) {
        *self.server.console.lock() = console;
    }

    /// The part of this node that sends requests.
    pub fn requester(&self) -> &Arc<Requester> {
        &self.server.srpc
    }

    /// The LNet stack of this node.
    pub fn lnet(&self) -> &Arc<Lnet> {
        &self.server.srpc.lnet
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.server.framework.lock().end_session();
    }
}

async fn watch_session(server: Arc<Server>) {
    loop {
        tokio::time::sleep(TICK).await;
        if let Some(name) = server.framework.lock().expire_session(cpt::now()) {
            tracing::warn!(
                "LNet selftest session {name} has expired: no console has sent a request within the session's timeout"
            );
        }
    }
}
