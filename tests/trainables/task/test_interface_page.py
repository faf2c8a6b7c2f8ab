import importlib

from searchlight.trainables.task.interface_page import FILE, PUBLIC, format_interface_page


def test_page_of_the_task_interface_shows_every_public_name():
    assert FILE.read_text(encoding="utf-8") == format_interface_page()
    modules = {name: importlib.import_module(name) for name in PUBLIC}
    declared = {name: {*module.__all__} for name, module in modules.items() if hasattr(module, "__all__")}
    assert declared == {name: {*PUBLIC[name]} for name in declared}
