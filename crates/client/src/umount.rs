//! The end of a mount: the client waits until each server has its changes on disk, then leaves.
//!
//! A server that crashes after a reply may lose the change; then the client sends the request
//! again. An unmounted client cannot. So an unmount first waits until the server has committed all
//! changes of this mount.

use crate::mdc::Mdc;
use bytes::Bytes;
use mgc::Mgc;
use rpc::{Import, Request, RpcError};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use wire::{MDS_SYNC, MdtBody, WireStruct};

/// The longest time that an unmount waits until the servers have its data and changes. The servers
/// share it.
pub const SAVE_MAX: Duration = Duration::from_secs(60);
/// The longest time of each later step with one server: cancelling locks, disconnecting. MDTs have
/// at least this time for their commits.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(10);

/// Changes that may be lost, because a server did not take or commit them before the unmount ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsaved {
    /// The OST did not take dirty data.
    #[error("{import}: the OST did not take all data within {SAVE_MAX:?}: data that was not synced is lost")]
    Data {
        /// The import of the OST.
        import: String,
    },
    /// The server did not confirm that changes are on its disk.
    #[error(
        "{import}: the server has not committed the last {requests} changes: they are lost if it has crashed"
    )]
    Changes {
        /// The import of the server.
        import: String,
        /// Number of requests whose changes are not known to be committed.
        requests: usize,
    },
}

/// Waits until the server of `import` has committed all changes of this mount. If replies left
/// changes uncommitted, sends `sync`, a request that writes the whole target to disk. After an
/// eviction there are no such changes: the eviction has reported them.
pub(crate) async fn commit(import: &Import, sync: Request) {
    while import.uncommitted() > 0 {
        match import.call(sync.clone()).await {
            Ok(_) => return,
            Err(RpcError::Evicted(_)) => {}
            Err(e) => {
                tracing::warn!(import = import.name(), "unmount: cannot sync the target: {e}");
                return;
            }
        }
    }
}

/// Runs one step of leaving a server for at most [`STEP_MAX`]. `what` ends the message "unmount:
/// the server did not …".
pub(crate) async fn limit_step(import: &Import, what: &str, step: impl Future<Output = ()>) {
    if timeout(STEP_MAX, step).await.is_err() {
        tracing::warn!(
            import = import.name(),
            "unmount: the server did not {what} within {STEP_MAX:?}"
        );
    }
}

/// Leaves an MDT: cancels locks, waits until `deadline` for the commit of all changes, disconnects.
pub(crate) async fn leave_mdt(mdc: Arc<Mdc>, deadline: Instant) -> Option<Unsaved> {
    let import = &mdc.import;
    // The cancellation of an open lock closes the file, which may be a change.
    limit_step(import, "take the lock cancellations", mdc.locks.cancel_all()).await;
    let sync = Request::new(MDS_SYNC, vec![MdtBody::default().to_bytes(), Bytes::new()]);
    let unsaved = save(import, commit(import, sync), deadline).await;
    limit_step(import, "answer MDS_DISCONNECT", import.disconnect()).await;
    unsaved
}

/// Leaves the MGS.
pub(crate) async fn leave_mgs(mgc: &Mgc) {
    if timeout(STEP_MAX, mgc.disconnect()).await.is_err() {
        tracing::warn!("unmount: the MGS did not answer MGS_DISCONNECT within {STEP_MAX:?}");
    }
}

/// Runs `saving` until `deadline`; returns the changes that are not committed then.
pub(crate) async fn save(
    import: &Import,
    saving: impl Future<Output = ()>,
    deadline: Instant,
) -> Option<Unsaved> {
    let _ = timeout_at(deadline, saving).await;
    let requests = import.uncommitted();
    (requests > 0).then(|| Unsaved::Changes {
        import: import.name().to_owned(),
        requests,
    })
}
