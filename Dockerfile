# An image with the command tfp-bfl, for simulations and for the servers and sites of a federation (compose.yaml):
#   docker build --tag tfp_bfl .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" tfp_bfl run --output first
# It writes to /tmp and to what is mounted, so that the rest may be read-only.
FROM python:3.12-slim AS build
ARG LOCK=requirements/deployment312.lock
WORKDIR /source
COPY requirements requirements
RUN python -m venv /opt/tfp_bfl
RUN /opt/tfp_bfl/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement "$LOCK"
COPY setup.cfg setup.py pyproject.toml README.md LICENSE ./
COPY tfp_bfl tfp_bfl
RUN /opt/tfp_bfl/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home tfp_bfl
COPY --from=build /opt/tfp_bfl /opt/tfp_bfl
# HOME and LOGNAME serve users of other numbers, who are not in /etc/passwd.
ENV PATH=/opt/tfp_bfl/bin:$PATH HOME=/tmp LOGNAME=tfp_bfl PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["tfp-bfl"]
CMD ["--help"]
