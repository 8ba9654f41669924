//! The network between simulated nodes: hosts, lanes from host to host, and frames in flight.

use crate::message::Msg;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};
use wire::Nid;

/// Cost in bytes of a frame without payload, for [`FrameInfo::bytes`].
const HEADER_BYTES: usize = 96;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameKind {
    /// Opens a connection.
    Hello,
    /// Accepts a connection.
    HelloReply,
    /// Refuses a connection: no process of the host has the NID.
    Refused,
    /// Ends a connection.
    Reset,
    /// A PUT.
    Put,
    /// A GET.
    Get,
    /// The acknowledgement of a PUT.
    Ack,
    /// The data of a GET.
    Reply,
}

/// The properties of a frame that a [`Weather`] sees.
#[derive(Debug, Clone, Copy)]
pub struct FrameInfo {
    /// The sender.
    pub from: Nid,
    /// The receiver.
    pub to: Nid,
    /// Its kind.
    pub kind: FrameKind,
    /// The portal of a PUT or GET.
    pub portal: u32,
    /// Its length in bytes, including the headers.
    pub bytes: usize,
}

/// The fate of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It arrives after this time, not before earlier frames of its lane.
    Deliver(Duration),
    /// It arrives after this time; later frames of its lane may overtake it.
    Reorder(Duration),
    /// It arrives twice, each time as with [`Fate::Reorder`].
    Duplicate(Duration, Duration),
    /// It never arrives, and neither end notices.
    Lose,
    /// It is lost, and both ends find their connection broken after this time.
    Break(Duration),
    /// It arrives after this time, and directly afterwards both ends find their connection broken.
    DeliverThenBreak(Duration),
}

/// Decides the fate of frames, and records what happens to them.
pub trait Weather: Send {
    /// The fate of a frame that its sender sends now.
    fn fate(&mut self, frame: &FrameInfo) -> Fate;

    /// A frame arrives now.
    fn arrived(&mut self, frame: &FrameInfo);
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    Hello { incarnation: u64 },
    HelloReply { incarnation: u64 },
    Refused,
    Reset,
    Data(Msg),
}

#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) from: Nid,
    pub(super) to: Nid,
    /// The connection.
    pub(super) conn: u64,
    pub(super) body: Body,
}

impl Frame {
    fn info(&self) -> FrameInfo {
        use wire::frame::LnetOp;
        let (kind, portal, bytes) = match &self.body {
            Body::Hello { .. } => (FrameKind::Hello, 0, 0),
            Body::HelloReply { .. } => (FrameKind::HelloReply, 0, 0),
            Body::Refused => (FrameKind::Refused, 0, 0),
            Body::Reset => (FrameKind::Reset, 0, 0),
            Body::Data(msg) => {
                let len = msg.payload.len();
                match msg.op {
                    LnetOp::Put(put) => (FrameKind::Put, put.ptl_index, len),
                    LnetOp::Get(get) => (FrameKind::Get, get.ptl_index, len),
                    LnetOp::Ack(_) => (FrameKind::Ack, 0, len),
                    LnetOp::Reply(_) => (FrameKind::Reply, 0, len),
                }
            }
        };
        FrameInfo {
            from: self.from,
            to: self.to,
            kind,
            portal,
            bytes: HEADER_BYTES + bytes,
        }
    }
}

/// The frames from one host to another.
#[derive(Debug, Default)]
struct Lane {
    blocked: bool,
    /// Arrival time of the last ordered frame.
    last: Option<Instant>,
    /// Frames that wait until the lane is open and the receiver has power, with the times at which
    /// they were sent.
    held: VecDeque<(Instant, Frame)>,
}

#[derive(Default)]
struct State {
    /// The processes that have NIDs.
    processes: BTreeMap<Nid, mpsc::UnboundedSender<Frame>>,
    /// Hosts without power.
    dark: BTreeSet<Nid>,
    lanes: BTreeMap<(Nid, Nid), Lane>,
    /// Frames in flight by arrival time and, among equal times, in the order of sending.
    in_flight: BTreeMap<(Instant, u64), Frame>,
    frames_sent: u64,
    connections: u64,
}

/// The network of one simulation.
pub struct Fabric {
    state: Mutex<State>,
    weather: Mutex<Box<dyn Weather>>,
    /// Notified after each new frame, which may arrive before the frame that [`Fabric::run`] waits
    /// for.
    changed: Notify,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// A network without nodes. [`Fabric::run`] must run for frames to arrive.
    pub fn new(weather: Box<dyn Weather>) -> Arc<Fabric> {
        Arc::new(Fabric {
            state: Mutex::default(),
            weather: Mutex::new(weather),
            changed: Notify::new(),
        })
    }

    /// Delivers frames, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let next = self.state.lock().in_flight.first_key_value().map(|(key, _)| *key);
            match next {
                None => changed.await,
                Some((at, _)) if at <= Instant::now() => {
                    let frame = self.state.lock().in_flight.pop_first();
                    frame.into_iter().for_each(|(_, frame)| self.arrive(frame));
                }
                Some((at, _)) => {
                    // The result does not matter: the loop looks for the first frame again.
                    let _ = timeout_at(at, changed).await;
                }
            }
        }
    }

    /// Blocks or opens the lane from one host to another. Blocking both directions partitions the
    /// network; blocking one direction makes connections half-open.
    pub fn block(&self, from: Nid, to: Nid, blocked: bool) {
        self.state.lock().lanes.entry((from, to)).or_default().blocked = blocked;
        if !blocked {
            self.release(|lane| lane == (from, to));
        }
    }

    /// Ends the process that has the NID, if any. Afterwards, the host refuses hellos to the NID,
    /// and answers data with a reset.
    pub fn end_process(&self, nid: Nid) {
        let peers: Vec<Nid> = {
            let mut state = self.state.lock();
            state.processes.remove(&nid);
            state.processes.keys().copied().collect()
        };
        for to in peers {
            self.transmit(Frame {
                from: nid,
                to,
                conn: 0,
                body: Body::Reset,
            });
        }
    }

    /// Powers a host off: frames to it wait, and its frames in flight are lost.
    pub fn power_off(&self, nid: Nid) {
        let mut state = self.state.lock();
        state.processes.remove(&nid);
        state.dark.insert(nid);
        state.in_flight.retain(|_, frame| frame.from != nid);
        for ((from, _), lane) in &mut state.lanes {
            if *from == nid {
                lane.held.clear();
            }
        }
    }

    /// Powers a host on, and sends it the frames that wait for it.
    pub fn power_on(&self, nid: Nid) {
        self.state.lock().dark.remove(&nid);
        self.release(|(_, to)| to == nid);
    }

    /// Number of frames that are in flight or wait.
    pub fn pending_frames(&self) -> usize {
        let state = self.state.lock();
        state.in_flight.len() + state.lanes.values().map(|lane| lane.held.len()).sum::<usize>()
    }

    /// Registers the process that has the NID; the receiver gets the NID's frames.
    pub(super) fn register(&self, nid: Nid) -> mpsc::UnboundedReceiver<Frame> {
        let (inbox, frames) = mpsc::unbounded_channel();
        self.state.lock().processes.insert(nid, inbox);
        frames
    }

    /// A number for a new connection, from 1.
    pub(super) fn next_connection(&self) -> u64 {
        let mut state = self.state.lock();
        state.connections += 1;
        state.connections
    }

    /// When the oldest waiting frame of a connection was sent; `None` if no frame waits.
    pub(super) fn oldest_held(&self, from: Nid, to: Nid, conn: u64) -> Option<Instant> {
        let state = self.state.lock();
        let lane = state.lanes.get(&(from, to))?;
        lane.held
            .iter()
            .find(|(_, frame)| frame.conn == conn)
            .map(|(at, _)| *at)
    }

    /// Drops the waiting frames of a connection that its sender has closed.
    pub(super) fn drop_held(&self, from: Nid, to: Nid, conn: u64) {
        if let Some(lane) = self.state.lock().lanes.get_mut(&(from, to)) {
            lane.held.retain(|(_, frame)| frame.conn != conn);
        }
    }

    /// Sends a frame.
    pub(super) fn transmit(&self, frame: Frame) {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            if state.dark.contains(&frame.from) {
                return;
            }
            let dark = state.dark.contains(&frame.to);
            let lane = state.lanes.entry((frame.from, frame.to)).or_default();
            if dark || lane.blocked {
                return lane.held.push_back((now, frame));
            }
        }
        let info = frame.info();
        let fate = self.weather.lock().fate(&info);
        match fate {
            Fate::Deliver(after) => {
                self.state.lock().insert_in_order(now + after, frame);
            }
            Fate::Reorder(after) => self.state.lock().insert(now + after, frame),
            Fate::Duplicate(first, second) => {
                let mut state = self.state.lock();
                state.insert(now + first, frame.clone());
                state.insert(now + second, frame);
            }
            Fate::Lose => {}
            Fate::Break(after) => self.state.lock().insert_resets(now + after, &frame),
            Fate::DeliverThenBreak(after) => {
                let mut state = self.state.lock();
                let at = state.insert_in_order(now + after, frame.clone());
                state.insert_resets(at, &frame);
            }
        }
        self.changed.notify_one();
    }

    /// Sends the waiting frames of the lanes that `is_open` selects. A frame waits again if its
    /// lane is still blocked or its receiver still has no power.
    fn release(&self, is_open: impl Fn((Nid, Nid)) -> bool) {
        let mut released = Vec::new();
        for (key, lane) in &mut self.state.lock().lanes {
            if is_open(*key) {
                released.extend(lane.held.drain(..).map(|(_, frame)| frame));
            }
        }
        released.into_iter().for_each(|frame| self.transmit(frame));
    }

    fn arrive(&self, frame: Frame) {
        let info = frame.info();
        let answer = {
            let mut state = self.state.lock();
            if state.dark.contains(&frame.to) {
                let lane = state.lanes.entry((frame.from, frame.to)).or_default();
                return lane.held.push_back((Instant::now(), frame));
            }
            let reply = |body| Frame {
                from: frame.to,
                to: frame.from,
                conn: frame.conn,
                body,
            };
            let answer = match frame.body {
                Body::Hello { .. } => Some(reply(Body::Refused)),
                Body::Data(_) => Some(reply(Body::Reset)),
                Body::HelloReply { .. } | Body::Refused | Body::Reset => None,
            };
            match state.processes.get(&frame.to) {
                // A closed inbox belongs to a process that has ended.
                Some(inbox) if inbox.send(frame).is_ok() => None,
                _ => answer,
            }
        };
        self.weather.lock().arrived(&info);
        answer.into_iter().for_each(|answer| self.transmit(answer));
    }
}

impl State {
    fn insert(&mut self, at: Instant, frame: Frame) {
        self.frames_sent += 1;
        self.in_flight.insert((at, self.frames_sent), frame);
    }

    /// Inserts a frame that arrives at this time, but not before earlier frames of its lane.
    /// Returns the time.
    fn insert_in_order(&mut self, at: Instant, frame: Frame) -> Instant {
        let lane = self.lanes.entry((frame.from, frame.to)).or_default();
        let at = lane.last.map_or(at, |last| last.max(at));
        lane.last = Some(at);
        self.insert(at, frame);
        at
    }

    /// Inserts the messages by which both ends find the connection of a frame broken.
    fn insert_resets(&mut self, at: Instant, frame: &Frame) {
        for (from, to) in [(frame.from, frame.to), (frame.to, frame.from)] {
            let reset = Frame {
                from,
                to,
                conn: frame.conn,
                body: Body::Reset,
            };
            self.insert(at, reset);
        }
    }
}
