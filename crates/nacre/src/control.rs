//! The control socket: commands send requests to a running process.
//!
//! One connection carries one request and its answer, each a line of JSON. The kernel identifies
//! the caller. Only root and the owner, the user of the process, may change or stop the process. A
//! process of root answers other requests (such as `nacre lfs df`) of every user, because every
//! user may use its mounts; a process of an ordinary user answers only that user and root.
//! The process limits the number of connections, the time of each transfer, and the time of answers
//! to users other than root and the owner.

mod limits;

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cpt::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cmd::lnetctl::Op;
use crate::cmd::nodemap::NodemapChange;
use crate::output;
use crate::process_node::MountRequest;
use crate::publish::with_short_path;
use limits::Limits;

/// Maximum length of a request in bytes.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of an answer in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Time limit for the process to receive a request, and again to send the answer.
const TRANSFER_MAX: Duration = Duration::from_secs(10);
/// Time limit for the last answers of a process that ends.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);
/// Time limit for answers to users other than root and the owner.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Pause after a failure to accept a connection, for example for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A request of a command to a running process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// The process's record and current memory use.
    Status,
    /// Unmount and stop; fails while a mount is in use, unless `lazy`.
    Stop { lazy: bool },
    /// Names and values of parameters.
    GetParam { pattern: String },
    /// The metrics, in Prometheus' text format.
    Metrics,
    /// Counts of operations, services, locks and throttled requests; with `directories`, also of
    /// operations by directory.
    Activity { directories: bool },
    /// Names and descriptions of parameters, and of the levels of their tree.
    ListParam { pattern: String, recursive: bool },
    /// Mount in this process. Fails if the process cannot mount by its role, lacks one of the
    /// command's start parameters, or is in another mount namespace.
    Mount {
        mount: MountRequest,
        start_params: Vec<String>,
        mount_ns: String,
    },
    /// Unmount; fails while the mount is in use, unless `lazy`.
    Umount { mountpoint: PathBuf, lazy: bool },
    /// Set parameters of this process.
    SetParam { pattern: String, value: String },
    /// Set a parameter permanently for every node, through the MGS; without a value, delete it.
    KeepParam { name: String, value: Option<String> },
    /// Change the nodemaps of the MGS in this process.
    Nodemap(NodemapChange),
    /// Ping a node; the answer has its NIDs.
    Ping { nid: String, timeout_s: u64 },
    /// The devices: targets, imports and parts of mounts.
    Devices,
    /// Show or change networks, routes and peers.
    Lnet(Op),
    /// Space of each target, as the client of a mount sees it.
    Df { mountpoint: PathBuf },
    /// FIDs of paths below a mount.
    Path2fid {
        mountpoint: PathBuf,
        paths: Vec<PathBuf>,
    },
    /// FIDs, projects and MDTs of paths below a mount; does not follow symbolic links.
    Inodes {
        mountpoint: PathBuf,
        paths: Vec<PathBuf>,
    },
    /// Create a directory with a layout (`lmv_user_md`); the path is below a mount.
    Mkdir {
        mountpoint: PathBuf,
        path: PathBuf,
        mode: u32,
        umask: u32,
        layout: Vec<u8>,
    },
    /// A command for the LNet selftest console of this process.
    Lst { command: lst_console::Command },
    /// Counters of nodes of the LNet selftest session of this process.
    LstCounts { names: Vec<String>, timeout_s: u64 },
    /// Paths of files by FID: one list for each FID.
    Fid2path { mountpoint: PathBuf, fids: Vec<String> },
    /// Names of files, each as `[FID of its directory]/name`: one list for each path below a mount.
    Parents {
        mountpoint: PathBuf,
        paths: Vec<PathBuf>,
    },
    /// Remove files by FID; the answer has an error message or null for each.
    Rmfid { mountpoint: PathBuf, fids: Vec<String> },
    /// Remove directory entries of lost files.
    RmEntry {
        mountpoint: PathBuf,
        paths: Vec<PathBuf>,
    },
}

impl Request {
    /// Whether only root and the owner may send this request.
    fn requires_owner(&self) -> bool {
        match self {
            Request::Mount { .. } | Request::Umount { .. } => true,
            Request::Stop { .. } | Request::SetParam { .. } | Request::KeepParam { .. } => true,
            Request::Lst { .. } | Request::LstCounts { .. } | Request::Nodemap(_) => true,
            Request::Lnet(op) => op.changes_configuration(),
            Request::Status
            | Request::Path2fid { .. }
            | Request::Inodes { .. }
            // The client of the mount checks permission to use FIDs.
            | Request::Fid2path { .. }
            | Request::Parents { .. }
            | Request::Rmfid { .. }
            | Request::RmEntry { .. }
            | Request::Mkdir { .. }
            | Request::GetParam { .. }
            | Request::Metrics
            | Request::Activity { .. }
            | Request::ListParam { .. }
            | Request::Ping { .. }
            | Request::Devices
            | Request::Df { .. } => false,
        }
    }

    /// The time that the request lets the process wait for other nodes.
    fn requested_wait(&self) -> Duration {
        use lst_console::Command;
        let seconds = match self {
            Request::Ping { timeout_s, .. }
            | Request::LstCounts { timeout_s, .. }
            | Request::Lst {
                command: Command::Ping { timeout_s, .. } | Command::Query { timeout_s, .. },
            } => *timeout_s,
            // The process queries the nodes one after the other.
            Request::Lnet(Op::Ping { nids, timeout_s, .. }) => timeout_s.saturating_mul(nids.len() as u64),
            _ => 0,
        };
        Duration::from_secs(seconds)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// The caller's credentials, from `SO_PEERCRED`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// The connections with commands that wait for an answer.
#[derive(Debug, Default)]
pub(crate) struct Answers(watch::Sender<usize>);

/// A connection with a command that waits for an answer.
struct Waiting<'a>(&'a Answers);

impl Answers {
    fn begin(&self) -> Waiting<'_> {
        self.0.send_modify(|waiting| *waiting += 1);
        Waiting(self)
    }

    /// Waits until each command has its answer, at most [`LAST_ANSWERS_MAX`].
    pub(crate) async fn wait_until_all_have_left(&self) {
        let mut waiting = self.0.subscribe();
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = timeout(LAST_ANSWERS_MAX, waiting.wait_for(|waiting| *waiting == 0)).await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|waiting| *waiting -= 1);
    }
}

/// Answers the requests of a control socket.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The commands that wait for an answer.
    fn answers(&self) -> &Answers;
    /// Answers a request; the caller's permission has been checked.
    fn handle(self: Arc<Self>, request: Request, caller: Caller) -> BoxFuture<'static, Result<Value>>;
}

/// Listens at `path` until the task is aborted.
pub(crate) fn listen(path: &Path, handler: Arc<dyn Handler>) -> Result<tokio::task::JoinHandle<()>> {
    let context = || format!("cannot listen at the control socket {}", path.display());
    let listener = tokio::net::UnixListener::bind(path).with_context(context)?;
    let mode = if serves_all_users() { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).with_context(context)?;
    let limits = Arc::<Limits>::default();
    Ok(tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => accept(stream, &limits, &handler),
                Err(e) => {
                    tracing::warn!("cannot accept a connection at the control socket: {e}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }))
}

/// Serves a connection in its own task, or refuses the connection.
fn accept(stream: tokio::net::UnixStream, limits: &Arc<Limits>, handler: &Arc<dyn Handler>) {
    let caller = match stream.peer_cred() {
        Ok(c) => Caller {
            uid: c.uid(),
            gid: c.gid(),
            pid: c.pid().map_or(0, |pid| pid as u32),
        },
        Err(e) => return refuse(stream, &format!("cannot identify the calling user: {e}")),
    };
    let caller_is_owner = is_owner(caller.uid);
    if !caller_is_owner && !serves_all_users() {
        return refuse(
            stream,
            "only the user that runs this process, or root, may use its control socket",
        );
    }
    match limits.admit((!caller_is_owner).then_some(caller.uid)) {
        Ok(permit) => {
            let handler = handler.clone();
            tokio::spawn(async move {
                serve(stream, caller, handler).await;
                drop(permit);
            });
        }
        Err(reason) => {
            lnet::warn_rate_limited!(uid = caller.uid, "control socket: connection refused: {reason}");
            refuse(stream, &format!("{reason}: try again"));
        }
    }
}

/// Writes an error to a connection that is not served. The line fits into a new socket's buffer, so
/// the write does not block.
fn refuse(stream: tokio::net::UnixStream, why: &str) {
    let line = to_line(&Answer::Error(why.to_owned()));
    // Ignore a failed write: the command does not read the answer.
    let _ = stream
        .into_std()
        .and_then(|mut stream| stream.write(line.as_bytes()));
}

/// Reads a request, and writes its answer.
async fn serve(mut stream: tokio::net::UnixStream, caller: Caller, handler: Arc<dyn Handler>) {
    let _waiting = handler.answers().begin();
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(REQUEST_BYTES_MAX));
    let received = timeout(TRANSFER_MAX, reader.read_line(&mut line)).await;
    if !matches!(received, Ok(Ok(n)) if n > 0) {
        return;
    }
    let answer = match serde_json::from_str::<Request>(&line) {
        Err(e) => Err(anyhow!("cannot parse the request: {e}")),
        Ok(request) if is_owner(caller.uid) => handler.clone().handle(request, caller).await,
        Ok(request) if request.requires_owner() => Err(anyhow!(
            "only the user that runs this process, or root, may do this"
        )),
        Ok(request) => timeout(ANSWER_MAX, handler.clone().handle(request, caller))
            .await
            .unwrap_or_else(|_| Err(anyhow!("no answer within {ANSWER_MAX:?}"))),
    };
    let answer = answer.map_or_else(|e| Answer::Error(output::describe(&e)), Answer::Ok);
    // Ignore a failed write: the command does not read the answer.
    let _ = timeout(TRANSFER_MAX, writer.write_all(to_line(&answer).as_bytes())).await;
}

fn to_line(answer: &Answer) -> String {
    let mut text = serde_json::to_string(answer).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"));
    text.push('\n');
    text
}

/// Whether a user is root or the owner of this process.
fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == crate::process::uid()
}

/// Whether users other than root and the owner may send requests: only to a process of root,
/// because every user may use a mount of root.
fn serves_all_users() -> bool {
    crate::process::uid() == 0
}

/// Sends a request to the process behind a control socket and waits for its answer, at most
/// `timeout` longer than the request lets the process wait.
pub(crate) fn call(socket: &Path, request: &Request, timeout: Duration) -> Result<Value> {
    let context = || format!("no answer at the control socket {}", socket.display());
    let mut stream = with_short_path(socket, |path| UnixStream::connect(path)).with_context(context)?;
    let timeout = timeout.saturating_add(request.requested_wait());
    stream.set_read_timeout(Some(timeout)).with_context(context)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    // A process that refuses the connection answers without reading the request.
    let sent = stream.write_all(line.as_bytes());
    let mut answer = String::new();
    let read = BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut answer);
    match read {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("{} within {} s", context(), timeout.as_secs())
        }
        read => read.with_context(context)?,
    };
    if answer.is_empty() {
        sent.with_context(context)?;
    }
    match serde_json::from_str(&answer).with_context(context)? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(why) => Err(Refused(why).into()),
    }
}

/// The process behind a control socket refused a request, or failed to do it: its message.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Decodes an answer of [`call()`]. Fails if the answer has another form, as from a
/// process of another version of Nacre.
pub(crate) fn decode<T: DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer).context(
        "the process sent an answer of an unexpected form: restart it if it runs another version of nacre",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requested_wait_covers_all_nodes() {
        let wait = |request: Request| request.requested_wait().as_secs();
        let nids = vec!["127.0.0.2@tcp".to_owned(); 3];
        let nid = nids[0].clone();
        assert_eq!(wait(Request::Status), 0);
        assert_eq!(wait(Request::Ping { nid, timeout_s: 50 }), 50);
        let names = Vec::new();
        assert_eq!(
            wait(Request::LstCounts {
                names,
                timeout_s: 600
            }),
            600
        );
        let ping = |timeout_s| {
            Request::Lnet(Op::Ping {
                nids: nids.clone(),
                timeout_s,
                discover: false,
            })
        };
        assert_eq!(wait(ping(200)), 600);
        assert_eq!(wait(ping(u64::MAX)), u64::MAX);
    }

    #[derive(Default)]
    struct Echo(Answers);
    impl Handler for Echo {
        fn answers(&self) -> &Answers {
            &self.0
        }

        fn handle(self: Arc<Self>, request: Request, _: Caller) -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                match request {
                    Request::GetParam { pattern } => Ok(Value::String(pattern)),
                    _ => bail!("not supported here"),
                }
            })
        }
    }

    #[test]
    fn answer_of_another_form_is_an_error() {
        let lists = decode::<Vec<Vec<String>>>(serde_json::json!([["a"], []])).unwrap();
        assert_eq!(lists, [vec!["a".to_owned()], Vec::new()]);
        for bad in [serde_json::json!("a"), serde_json::json!([1]), Value::Null] {
            let error = decode::<Vec<String>>(bad).unwrap_err().to_string();
            assert!(error.contains("unexpected form"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn request_returns_answer_or_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let task = listen(&path, Arc::new(Echo::default())).unwrap();
        let calls = tokio::task::spawn_blocking(move || {
            let wait = Duration::from_secs(10);
            let answer = call(
                &path,
                &Request::GetParam {
                    pattern: "a.*".to_owned(),
                },
                wait,
            );
            (answer, call(&path, &Request::Status, wait))
        });
        let (answer, error) = calls.await.unwrap();
        assert_eq!(answer.unwrap(), Value::String("a.*".to_owned()));
        assert_eq!(error.unwrap_err().to_string(), "not supported here");
        task.abort();
    }

    /// The paused clock advances only while no task can run.
    #[tokio::test(start_paused = true)]
    async fn connection_without_a_complete_request_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let task = listen(&path, Arc::new(Echo::default())).unwrap();
        let start_time = tokio::time::Instant::now();
        let mut silent = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut incomplete = tokio::net::UnixStream::connect(&path).await.unwrap();
        incomplete.write_all(b"{\"op\":").await.unwrap();
        for stream in [&mut silent, &mut incomplete] {
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
        }
        assert!(start_time.elapsed() >= TRANSFER_MAX);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_connections_are_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let task = listen(&path, Arc::new(Echo::default())).unwrap();
        let mut connections = Vec::new();
        for _ in 0..200 {
            connections.push(tokio::net::UnixStream::connect(&path).await.unwrap());
        }
        // The listener accepts connections in order, so the last one is refused last.
        let mut why = String::new();
        connections
            .last_mut()
            .unwrap()
            .read_to_string(&mut why)
            .await
            .unwrap();
        assert!(why.contains("wait for answers already"), "{why}");
        drop(connections);
        let mut next = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut answer = String::new();
        next.write_all(b"{\"op\":\"get_param\",\"pattern\":\"x\"}\n")
            .await
            .unwrap();
        next.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("ok"), "{answer}");
        task.abort();
    }
}
