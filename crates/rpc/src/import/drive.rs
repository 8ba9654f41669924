//! Carries out the decisions of an import's state machine, in one task per import. The task ends
//! when the import is closed or dropped.

use super::machine::{Action, Attempt, Event, Outcome};
use super::{Import, ImportEvent, ImportState};
use crate::{Request, RpcError};
use lnet::PeerEvent;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};
use tokio::time::sleep_until;

/// LNet's events about peers.
type PeerEvents = broadcast::Receiver<PeerEvent>;

/// How long a driver sleeps if the state machine sets no time to wake up.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);

impl Import {
    /// Starts the driver, unless it was started already.
    pub(super) fn start_driver(&self) {
        if !self.driver_started.swap(true, Ordering::AcqRel) {
            let peer_events = self.rpc.lnet().peer_events();
            let driver = drive(self.me.clone(), self.wake.clone(), peer_events);
            self.rpc.cpt_of(self.peer()).spawn(driver);
        }
    }

    /// Carries out all pending actions. Returns the time to wake up next; `None` if the import is
    /// closed.
    async fn step(self: &Arc<Self>, peer_events: &mut PeerEvents) -> Option<std::time::Instant> {
        loop {
            let (action, phase) = {
                let mut core = self.core.lock();
                let action = (!core.pending.is_empty()).then(|| core.pending.remove(0));
                if action.is_some_and(|a| !matches!(a, Action::Ping | Action::CheckIdle)) {
                    core.announced = false;
                }
                (action, core.phase())
            };
            self.phase
                .send_if_modified(|sent| std::mem::replace(sent, phase) != phase);
            match action {
                Some(action) => self.carry_out(action, peer_events).await,
                None if phase.state == ImportState::Closed => return None,
                None => {
                    let mut core = self.core.lock();
                    if core.pending.is_empty() {
                        core.wake_at = core.machine.wake_at(core.uncommitted.count() > 0);
                        return Some(core.wake_at.unwrap_or_else(|| cpt::now() + SLEEP_MAX));
                    }
                }
            }
        }
    }

    async fn carry_out(self: &Arc<Self>, action: Action, peer_events: &mut PeerEvents) {
        let owner = self.owner();
        match action {
            Action::Connect(attempt) => {
                // Events from before this attempt do not concern it.
                *peer_events = peer_events.resubscribe();
                let outcome = tokio::select! {
                    biased;
                    () = self.wait_until_superseded(attempt) => return,
                    outcome = self.connect_once(attempt) => outcome,
                    why = self.wait_for_loss(peer_events) => self.record_failure(Outcome::Failed, why),
                };
                self.event(Event::Connect {
                    conn_cnt: attempt.conn_cnt,
                    outcome,
                });
            }
            Action::Recover { conn_cnt } => {
                *peer_events = peer_events.resubscribe();
                tokio::select! {
                    biased;
                    () = self.wait_until_left(conn_cnt) => {}
                    () = self.recover(conn_cnt) => {}
                    _ = self.wait_for_loss(peer_events) => self.event(Event::Broken { conn_cnt }),
                }
            }
            Action::Invalidate => {
                tracing::warn!(import = self.name(), "evicted by the server");
                {
                    let mut core = self.core.lock();
                    if std::mem::take(&mut core.is_unrecovered) {
                        core.uncommitted.lose_all();
                    }
                    core.uncommitted.clear();
                }
                owner.event(ImportEvent::Evicted);
                self.event(Event::Invalidated);
            }
            Action::AnnounceConnected => {
                let data = self.connect_data();
                tracing::info!(import = self.name(), peer = %self.peer(), "connected");
                owner.event(ImportEvent::Connected(data));
                let mut core = self.core.lock();
                core.announced = core.machine.state() == ImportState::Full;
            }
            Action::AnnounceDisconnected => {
                tracing::info!(import = self.name(), peer = %self.peer(), "connection lost");
                owner.event(ImportEvent::Disconnected);
            }
            Action::AnnounceClosed => owner.event(ImportEvent::Closed),
            Action::CheckIdle => self.disconnect_if_idle().await,
            Action::Ping => {
                let import = self.clone();
                self.rpc
                    .cpt_of(self.peer())
                    .spawn(async move { import.ping().await });
            }
        }
    }

    /// Disconnects from the server if the owner holds nothing, no request is in flight, and no
    /// transaction is uncommitted. A later request reconnects, after the disconnect has ended.
    async fn disconnect_if_idle(&self) {
        if self.owner().in_use() {
            return;
        }
        {
            let mut core = self.core.lock();
            if core.unreplied.len() > 0 || core.uncommitted.count() > 0 {
                return;
            }
            core.process(Event::IdleDisconnect);
            if core.machine.state() != ImportState::Idle {
                return;
            }
            self.phase.send_replace(core.phase());
        }
        tracing::info!(import = self.name(), peer = %self.peer(), "disconnected because the import is idle; the next request reconnects");
        self.owner().event(ImportEvent::Idle);
        self.send_disconnect().await;
    }

    /// Sends a ping. The reply carries `last_committed`; a missing reply means that the connection
    /// is broken.
    async fn ping(&self) {
        let ping = Request {
            reply_len: 0,
            no_delay: true,
            no_resend: true,
            ..Request::new(wire::OBD_PING, Vec::new())
        };
        if let Err(e @ RpcError::Status(_)) = self.call(ping).await {
            tracing::debug!(import = self.name(), error = %e, "ping refused");
        }
        self.event(Event::PingDone);
    }

    /// Resolves when the import no longer recovers on the connection `conn_cnt`: it is closed, the
    /// target moved, or a request got no reply.
    async fn wait_until_left(&self, conn_cnt: u32) {
        let has_left = || {
            let core = self.core.lock();
            !core.machine.state().is_replaying() || core.machine.conn_cnt() != conn_cnt
        };
        while !has_left() {
            self.wake.notified().await;
        }
    }

    /// Resolves when the attempt is pointless: the import is closed, or the target moved.
    async fn wait_until_superseded(&self, attempt: Attempt) {
        let is_superseded = || {
            let core = self.core.lock();
            core.machine.state() == ImportState::Closed || core.machine.conn_cnt() != attempt.conn_cnt
        };
        while !is_superseded() {
            self.wake.notified().await;
        }
    }

    /// Waits until the connection to the server is lost, and with it any message in flight. Returns
    /// the reason.
    async fn wait_for_loss(&self, peer_events: &mut PeerEvents) -> RpcError {
        loop {
            if let Some(why) = self.loss_reason(peer_events.recv().await) {
                return why;
            }
        }
    }

    /// Returns the reason if a peer event means that the connection to the server is lost.
    fn loss_reason(&self, event: Result<PeerEvent, RecvError>) -> Option<RpcError> {
        let (lnet, server) = (self.rpc.lnet(), self.peer());
        let why = match event {
            Ok(PeerEvent::Down(nid)) if nid == server => "its connection was lost".to_owned(),
            // The router may have lost requests that another router would deliver.
            Ok(PeerEvent::Down(nid)) if lnet.has_route_via(server, nid) => {
                format!("the connection to the router {nid} was lost")
            }
            // The loss may have been among the missed events.
            Err(RecvError::Lagged(_)) if lnet.link(server).is_some_and(|link| !link.up) => {
                "it is not connected".to_owned()
            }
            _ => return None,
        };
        let peer = server.to_string();
        Some(RpcError::Net { peer, why })
    }
}

/// The driver's task.
async fn drive(import: Weak<Import>, wake: Arc<Notify>, mut peer_events: PeerEvents) {
    loop {
        let wake_at = match import.upgrade() {
            Some(import) => import.step(&mut peer_events).await,
            None => return,
        };
        let Some(wake_at) = wake_at else { return };
        let event = tokio::select! {
            // Peer events first: calls that wake the driver again and again must not hide a loss.
            biased;
            event = peer_events.recv() => match event {
                Err(RecvError::Closed) => return,
                event => Some(event),
            },
            () = wake.notified() => None,
            () = sleep_until(wake_at.into()) => None,
        };
        let Some(import) = import.upgrade() else { return };
        match event {
            None => import.event(Event::Tick),
            Some(event) => {
                if import.loss_reason(event).is_some() {
                    let conn_cnt = import.core.lock().machine.conn_cnt();
                    import.event(Event::Broken { conn_cnt });
                }
            }
        }
    }
}
