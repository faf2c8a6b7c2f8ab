import pytest


@pytest.fixture(scope="session")
def server():
    from tests.search.postgres_server import Server, find_programs  # psycopg is an extra

    programs = find_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    made = Server(programs)
    yield made
    made.remove()
