//! What LNet is compared with: bare TCP on loopback, the same messages in the same order on as many connections, and nothing
//! around them. It knows nothing of LNet but the lengths.
//!
//! A client keeps its requests in flight by sending the next for each that is done. Each message is written by itself, as it
//! comes; a batched echo writes everything that a read has brought about at once, which is the most that TCP gives.

use super::Load;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The head of any message, as long as LNet's over TCP.
const HEAD: usize = 96;
/// A request or a reply: the head, and a message of LNet selftest.
const MESSAGE: usize = HEAD + 160;
/// Memory that is read into.
const BUFFER: usize = 64 << 10;

/// What a message begins with.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const FETCH: u8 = 3;

/// A client's connections, running.
pub(super) struct Echo {
    /// What each client has done.
    pub(super) done: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<io::Result<()>>,
}

/// A connection's sending end, used by whoever has something to say.
type Sender = Arc<tokio::sync::Mutex<OwnedWriteHalf>>;

impl Echo {
    /// Connects so many clients to a server, each with `concurrency` requests in flight, and begins.
    pub(super) async fn start(
        runtime: &Handle,
        load: Load,
        clients: usize,
        concurrency: usize,
        batched: bool,
    ) -> io::Result<Echo> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let mut done = Vec::new();
        for _ in 0..clients {
            let (control, served) = pair(&listener).await?;
            let count = Arc::new(AtomicU64::new(0));
            done.push(count.clone());
            let client = Client {
                concurrency,
                batched,
                count,
                stop: stop.clone(),
            };
            if load == Load::Ping {
                tasks.spawn_on(client.ping(control), runtime);
                tasks.spawn_on(echo(served, batched), runtime);
                continue;
            }
            let (bulk, bulk_served) = pair(&listener).await?;
            if load.writes() {
                let (requests, to_client) = served.into_split();
                let to_client: Sender = Arc::new(tokio::sync::Mutex::new(to_client));
                tasks.spawn_on(ask_for_bulk(requests, to_client.clone()), runtime);
                tasks.spawn_on(take_bulk(bulk_served, to_client, load.bytes()), runtime);
                tasks.spawn_on(client.write(control, bulk, load.bytes()), runtime);
            } else {
                let arrived = Arc::new(Semaphore::new(0));
                tasks.spawn_on(send_bulk(served, bulk_served, load.bytes()), runtime);
                tasks.spawn_on(count_bulk(bulk, arrived.clone(), load.bytes()), runtime);
                tasks.spawn_on(client.read(control, arrived), runtime);
            }
        }
        Ok(Echo { done, stop, tasks })
    }

    /// Ends it; says what went wrong meanwhile.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        let ended_early = self.tasks.try_join_next();
        self.stop.store(true, Relaxed);
        self.tasks.shutdown().await;
        match ended_early {
            Some(Ok(Err(e))) => Err(e),
            _ => Ok(()),
        }
    }
}

/// Both ends of a connection.
async fn pair(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let (client, served) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    let (client, (served, _)) = (client?, served?);
    client.set_nodelay(true)?;
    served.set_nodelay(true)?;
    Ok((client, served))
}

fn message(kind: u8) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[0] = kind;
    bytes
}

/// Small messages, read as many at a time as there are.
struct Messages {
    from: OwnedReadHalf,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Messages {
    fn new(from: OwnedReadHalf) -> Messages {
        Messages {
            from,
            buffer: vec![0; BUFFER],
            begin: 0,
            end: 0,
        }
    }

    /// The next message if it is here already.
    fn here(&mut self) -> Option<u8> {
        let kind = *self.buffer[self.begin..self.end].first()?;
        let len = if kind == FETCH { HEAD } else { MESSAGE };
        if self.end - self.begin < len {
            return None;
        }
        self.begin += len;
        Some(kind)
    }

    async fn next(&mut self) -> io::Result<u8> {
        loop {
            if let Some(kind) = self.here() {
                return Ok(kind);
            }
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            match self.from.read(&mut self.buffer[self.end..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.end += n,
            }
        }
    }
}

/// Answers each request with a message of its length.
async fn echo(stream: TcpStream, batched: bool) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut requests = Messages::new(from);
    let mut out = Vec::new();
    loop {
        requests.next().await?;
        out.extend_from_slice(&message(REPLY));
        while batched && requests.here().is_some() {
            out.extend_from_slice(&message(REPLY));
        }
        to.write_all(&out).await?;
        out.clear();
    }
}

/// A server that sends bulk for each request, and then says so.
async fn send_bulk(control: TcpStream, mut bulk: TcpStream, bytes: usize) -> io::Result<()> {
    let (from, mut to) = control.into_split();
    let mut requests = Messages::new(from);
    let data = vec![7; HEAD + bytes];
    loop {
        requests.next().await?;
        bulk.write_all(&data).await?;
        to.write_all(&message(REPLY)).await?;
    }
}

/// A server that asks for the bulk of each request...
async fn ask_for_bulk(from: OwnedReadHalf, to: Sender) -> io::Result<()> {
    let mut requests = Messages::new(from);
    loop {
        requests.next().await?;
        to.lock().await.write_all(&message(FETCH)[..HEAD]).await?;
    }
}

/// ... and says when it has come.
async fn take_bulk(mut bulk: TcpStream, to: Sender, bytes: usize) -> io::Result<()> {
    let mut data = vec![0; HEAD + bytes];
    loop {
        bulk.read_exact(&mut data).await?;
        to.lock().await.write_all(&message(REPLY)).await?;
    }
}

/// A client's bulk as it comes.
async fn count_bulk(mut bulk: TcpStream, arrived: Arc<Semaphore>, bytes: usize) -> io::Result<()> {
    let mut data = vec![0; HEAD + bytes];
    loop {
        bulk.read_exact(&mut data).await?;
        arrived.add_permits(1);
    }
}

struct Client {
    concurrency: usize,
    batched: bool,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Client {
    async fn begin(&self, control: TcpStream) -> io::Result<(Messages, OwnedWriteHalf)> {
        let (from, mut to) = control.into_split();
        for _ in 0..self.concurrency {
            to.write_all(&message(REQUEST)).await?;
        }
        Ok((Messages::new(from), to))
    }

    async fn ping(self, control: TcpStream) -> io::Result<()> {
        let (mut replies, mut to) = self.begin(control).await?;
        let mut out = Vec::new();
        while !self.stop.load(Relaxed) {
            replies.next().await?;
            out.extend_from_slice(&message(REQUEST));
            while self.batched && replies.here().is_some() {
                out.extend_from_slice(&message(REQUEST));
            }
            self.count.fetch_add((out.len() / MESSAGE) as u64, Relaxed);
            to.write_all(&out).await?;
            out.clear();
        }
        Ok(())
    }

    async fn read(self, control: TcpStream, arrived: Arc<Semaphore>) -> io::Result<()> {
        let (mut replies, mut to) = self.begin(control).await?;
        while !self.stop.load(Relaxed) {
            replies.next().await?;
            match arrived.acquire().await {
                Ok(one) => one.forget(),
                Err(_) => return Ok(()),
            }
            self.count.fetch_add(1, Relaxed);
            to.write_all(&message(REQUEST)).await?;
        }
        Ok(())
    }

    /// Bulk is sent by a task of its own, so that what a server still has to say is read meanwhile.
    async fn write(self, control: TcpStream, mut bulk: TcpStream, bytes: usize) -> io::Result<()> {
        let (mut from_server, mut to) = self.begin(control).await?;
        let wanted = Arc::new(Semaphore::new(0));
        let asked = wanted.clone();
        let mut sending = JoinSet::new();
        sending.spawn(async move {
            let data = vec![7; HEAD + bytes];
            while let Ok(one) = asked.acquire().await {
                one.forget();
                bulk.write_all(&data).await?;
            }
            io::Result::Ok(())
        });
        while !self.stop.load(Relaxed) {
            if from_server.next().await? == FETCH {
                wanted.add_permits(1);
                continue;
            }
            self.count.fetch_add(1, Relaxed);
            to.write_all(&message(REQUEST)).await?;
        }
        Ok(())
    }
}
