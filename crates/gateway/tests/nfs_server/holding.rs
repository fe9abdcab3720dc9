//! A filesystem in front of another one, whose operations wait and fail when a test says so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, FileError, FileId, FileRead, Files,
    FilesystemId, Found, Listing, New, Node, SetAttributes, Space, Stability, Timestamp, Written,
};
use flagstone_platform::IoBuf;
use flagstone_platform::sync::Signal;

pub type Pause = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
pub struct Control {
    /// Operations of this name wait.
    held: RefCell<Option<&'static str>>,
    released: Signal,
    /// Operations of this name fail so many times like this.
    failing: RefCell<Option<(&'static str, FileError, u32)>>,
    /// How many of each name have begun, and are under way.
    begun: RefCell<BTreeMap<&'static str, u32>>,
    running: Cell<u32>,
    running_max: Cell<u32>,
    /// What each operation waits for first.
    pub pause: RefCell<Option<Box<dyn Fn() -> Pause>>>,
    /// Payload of the last write: length, and offset of its memory from a page.
    pub last_write: Cell<(usize, usize)>,
}

#[derive(Clone)]
pub struct Holding<F> {
    pub inner: F,
    pub control: Rc<Control>,
}

struct Running<'a>(&'a Control);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl<F> Holding<F> {
    pub fn new(inner: F) -> Holding<F> {
        Holding {
            inner,
            control: Rc::default(),
        }
    }

    /// Operations of this name wait from now on.
    pub fn hold(&self, name: &'static str) {
        *self.control.held.borrow_mut() = Some(name);
    }

    pub fn release(&self) {
        *self.control.held.borrow_mut() = None;
        self.control.released.notify();
    }

    /// The next `count` operations of this name fail.
    pub fn fail(&self, name: &'static str, error: FileError, count: u32) {
        *self.control.failing.borrow_mut() = Some((name, error, count));
    }

    pub fn begun(&self, name: &str) -> u32 {
        self.control.begun.borrow().get(name).copied().unwrap_or(0)
    }

    pub fn running(&self) -> u32 {
        self.control.running.get()
    }

    async fn begin(&self, name: &'static str) -> Result<Running<'_>, FileError> {
        let control = &self.control;
        *control.begun.borrow_mut().entry(name).or_default() += 1;
        control.running.set(control.running.get() + 1);
        let most = control.running_max.get().max(control.running.get());
        control.running_max.set(most);
        let running = Running(control);
        let pause = control.pause.borrow().as_ref().map(|pause| pause());
        if let Some(pause) = pause {
            pause.await;
        }
        while *control.held.borrow() == Some(name) {
            control.released.wait().await;
        }
        if let Some((failing, error, count)) = &mut *control.failing.borrow_mut()
            && *failing == name
            && *count > 0
        {
            *count -= 1;
            return Err(*error);
        }
        Ok(running)
    }
}

impl<F: Files> Files for Holding<F> {
    fn id(&self) -> FilesystemId {
        self.inner.id()
    }

    fn root(&self) -> FileId {
        self.inner.root()
    }

    fn secret(&self) -> [u8; 16] {
        self.inner.secret()
    }

    fn size_max_bytes(&self) -> u64 {
        self.inner.size_max_bytes()
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        let _running = self.begin("attributes").await?;
        self.inner.attributes(node).await
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        let _running = self.begin("access").await?;
        self.inner.access(caller, node, wanted).await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        let _running = self.begin("lookup").await?;
        self.inner.lookup(caller, directory, name).await
    }

    async fn read_link(
        &self,
        caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        let _running = self.begin("read_link").await?;
        self.inner.read_link(caller, node).await
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        let _running = self.begin("read").await?;
        self.inner.read(caller, node, offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        let _running = self.begin("write").await?;
        let last = (data.len(), data.as_ptr() as usize % 4096);
        self.control.last_write.set(last);
        self.inner
            .write(caller, node, offset_bytes, data, stability)
            .await
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        let _running = self.begin("commit").await?;
        self.inner.commit(caller, node).await
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let _running = self.begin("set_attributes").await?;
        self.inner.set_attributes(caller, node, set, guard).await
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        let _running = self.begin("make").await?;
        self.inner.make(caller, directory, name, new, set).await
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let _running = self.begin("remove").await?;
        self.inner.remove(caller, directory, name).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let _running = self.begin("remove_directory").await?;
        self.inner.remove_directory(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        let _running = self.begin("rename").await?;
        self.inner.rename(caller, from, to).await
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        let _running = self.begin("link").await?;
        self.inner.link(caller, node, directory, name).await
    }

    async fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        let _running = self.begin("list").await?;
        self.inner
            .list(caller, directory, behind, count, with_attributes)
            .await
    }

    async fn space(&self) -> Result<Space, FileError> {
        let _running = self.begin("space").await?;
        self.inner.space().await
    }
}
